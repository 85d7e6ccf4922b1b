package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.StructType;

/** A stream that Spark asks for the end of a batch with the batch's limit. */
class AdmittedTableStream extends TableStream implements SupportsAdmissionControl {
  private final SupportsAdmissionControl admitting;

  AdmittedTableStream(
      String name, PythonCalls calls, StructType schema, SupportsAdmissionControl python) {
    super(name, calls, schema, (MicroBatchStream) python);
    this.admitting = python;
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return admitting.latestOffset(start, limit);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return admitting.getDefaultReadLimit();
  }

  @Override
  public Offset reportLatestOffset() {
    Offset found = admitting.reportLatestOffset();
    if (found == null) return null;
    lag = new StreamLag(found.json());
    return deserializeOffset(lag.newest);
  }
}
