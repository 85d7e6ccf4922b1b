package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** The position of a stream of a table, as Python makes it: the same text for micro-batches and in real-time mode. */
final class StreamPosition extends Offset {
  private final String json;

  StreamPosition(String json) {
    this.json = json;
  }

  @Override
  public String json() {
    return json;
  }
}
