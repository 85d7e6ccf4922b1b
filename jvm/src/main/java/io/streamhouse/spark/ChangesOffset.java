package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The last commit whose changes a stream has read, with the time that they were shown with, as Python made it. */
final class ChangesOffset extends Offset {
  private final String json;

  ChangesOffset(String json) {
    this.json = json;
  }

  /** The offset before all changes of a range. */
  static ChangesOffset before(String uuid, long first) {
    return new ChangesOffset(
        JsonTree.object()
            .put("uuid", uuid)
            .put("commit", Math.max(0, first - 1))
            .putNull("attempt")
            .putNull("time_us")
            .toString());
  }

  JsonNode node() {
    return JsonTree.parse(json);
  }

  @Override
  public String json() {
    return json;
  }
}
