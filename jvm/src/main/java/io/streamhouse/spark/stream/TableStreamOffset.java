package io.streamhouse.spark.stream;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** The position of a stream of a table, as Python makes it: the same text for micro-batches and in real-time mode. */
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
