package io.streamhouse.spark.stream;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** The offset of a stream, as Python encodes it. Micro-batches and real-time mode use the same encoding. */
public final class TableStreamOffset extends Offset {
  private final String json;

  public TableStreamOffset(String json) {
    this.json = json;
  }

  @Override
  public String json() {
    return json;
  }
}
