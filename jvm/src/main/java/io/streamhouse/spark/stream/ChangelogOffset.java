package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** The last commit whose changes a stream has read, with the time that they were shown with, as Python made it. */
final class ChangelogOffset extends Offset {
  private final String json;

  ChangelogOffset(String json) {
    this.json = json;
  }

  /** The offset before all changes of a range. */
  static ChangelogOffset before(String uuid, long first) {
    return new ChangelogOffset(
        Json.object()
            .put("uuid", uuid)
            .put("commit", Math.max(0, first - 1))
            .putNull("attempt")
            .putNull("time_us")
            .toString());
  }

  JsonNode toJson() {
    return Json.parse(json);
  }

  @Override
  public String json() {
    return json;
  }
}
