package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.temporal.ChronoUnit;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** What a query says of its events: their format, the columns that they are for, and forms that their texts lack. */
final class EventForms {
  final EventFormat format;
  final EventColumn columns;
  final List<String> key;
  final boolean[] isKey;

  /** The unit of numbers that are timestamps, or null. */
  final ChronoUnit times;

  /** Whether decimals are bytes. */
  final boolean isBase64;

  EventForms(String json) {
    JsonNode spec = JsonTree.parse(json);
    format = EventFormat.of(spec.get("format").asText());
    columns = EventColumn.row((StructType) DataType.fromJson(spec.get("columns").toString()));
    key = JsonTree.list(spec.get("key"));
    isKey = new boolean[columns.parts.length];
    for (String name : key) isKey[columns.places.get(name)] = true;
    isBase64 = spec.path("decimals").asText().equals("base64");
    switch (spec.path("times").asText()) {
      case "millis":
        times = ChronoUnit.MILLIS;
        break;
      case "micros":
        times = ChronoUnit.MICROS;
        break;
      case "nanos":
        times = ChronoUnit.NANOS;
        break;
      default:
        times = null;
    }
  }
}
