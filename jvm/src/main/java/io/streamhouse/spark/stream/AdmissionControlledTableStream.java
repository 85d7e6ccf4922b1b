package io.streamhouse.spark.stream;

import io.streamhouse.spark.rpc.PythonRpc;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.StructType;

/** A stream that applies Spark's read limits when it determines the end of a batch. */
class AdmissionControlledTableStream extends TableStream implements SupportsAdmissionControl {
  private final SupportsAdmissionControl pythonStream;

  AdmissionControlledTableStream(
      String name, PythonRpc python, StructType schema, SupportsAdmissionControl pythonStream) {
    super(name, python, schema, (MicroBatchStream) pythonStream);
    this.pythonStream = pythonStream;
  }

  @Override
  public Offset latestOffset(Offset start, ReadLimit limit) {
    return pythonStream.latestOffset(start, limit);
  }

  @Override
  public ReadLimit getDefaultReadLimit() {
    return pythonStream.getDefaultReadLimit();
  }

  @Override
  public Offset reportLatestOffset() {
    Offset reported = pythonStream.reportLatestOffset();
    if (reported == null) return null;
    lag = new StreamLag(reported.json());
    return deserializeOffset(lag.latestOffset);
  }
}
