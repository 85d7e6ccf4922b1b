package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A stream whose batches Spark limits. */
final class LimitedTableStream extends TableStream implements SupportsTriggerAvailableNow {
  private final SupportsTriggerAvailableNow limited;

  LimitedTableStream(
      String name, PythonCalls calls, StructType schema, SupportsTriggerAvailableNow python) {
    super(name, calls, schema, (MicroBatchStream) python);
    this.limited = python;
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return limited.latestOffset(start, limit);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return limited.getDefaultReadLimit();
  }

  @Override
  public Offset reportLatestOffset() {
    Offset found = limited.reportLatestOffset();
    if (found == null) return null;
    lag = new StreamLag(found.json());
    return deserializeOffset(lag.newest);
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    limited.prepareForTriggerAvailableNow();
  }
}
