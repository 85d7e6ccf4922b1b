package io.streamhouse.spark.cdc;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import java.time.temporal.ChronoUnit;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** How a query decodes events: their format, the target columns, and the encodings that the events do not state. */
final class EventDecoderSpec {
  final EventFormat format;
  final EventColumn columns;
  final List<String> key;
  final boolean[] isKey;

  /** The unit of numeric timestamps, or null if it is unknown. */
  final ChronoUnit timestampUnit;

  /** Whether decimals are base64-encoded unscaled bytes. */
  final boolean hasBase64Decimals;

  EventDecoderSpec(String json) {
    JsonNode tree = Json.parse(json);
    format = EventFormat.of(tree.get("format").asText());
    columns = EventColumn.ofRow((StructType) DataType.fromJson(tree.get("columns").toString()));
    key = Json.toList(tree.get("key"));
    isKey = new boolean[columns.children.length];
    for (String name : key) isKey[columns.ordinals.get(name)] = true;
    hasBase64Decimals = tree.path("decimals").asText().equals("base64");
    switch (tree.path("times").asText()) {
      case "millis":
        timestampUnit = ChronoUnit.MILLIS;
        break;
      case "micros":
        timestampUnit = ChronoUnit.MICROS;
        break;
      case "nanos":
        timestampUnit = ChronoUnit.NANOS;
        break;
      default:
        timestampUnit = null;
    }
  }
}
