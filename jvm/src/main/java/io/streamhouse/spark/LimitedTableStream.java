package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A stream that can end with the rows that are there when it begins, in batches that Spark limits. */
final class LimitedTableStream extends AdmittedTableStream implements SupportsTriggerAvailableNow {
  private final SupportsTriggerAvailableNow limited;

  LimitedTableStream(
      String name, PythonCalls calls, StructType schema, SupportsTriggerAvailableNow python) {
    super(name, calls, schema, python);
    this.limited = python;
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    limited.prepareForTriggerAvailableNow();
  }
}
