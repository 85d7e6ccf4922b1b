package io.streamhouse.spark.stream;

import io.streamhouse.spark.rpc.PythonRpc;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;

/** A stream that supports {@code Trigger.AvailableNow}: it ends with the rows that exist when it starts. */
final class AvailableNowTableStream extends AdmissionControlledTableStream implements SupportsTriggerAvailableNow {
  private final SupportsTriggerAvailableNow pythonStream;

  AvailableNowTableStream(
      String name, PythonRpc python, StructType schema, SupportsTriggerAvailableNow pythonStream) {
    super(name, python, schema, pythonStream);
    this.pythonStream = pythonStream;
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    pythonStream.prepareForTriggerAvailableNow();
  }
}
