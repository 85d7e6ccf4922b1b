package io.streamhouse.spark.cdc;

import com.fasterxml.jackson.databind.JsonNode;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.Map;

/**
 * The semantic type that a schema gives a value, and those of its nested values.
 *
 *
 * <p>Sources: Kafka Connect's JSON converter ("schemas.enable"); the names of semantic types in Debezium's
 * documentation ("data type mappings" of its connectors) and in {@code org.apache.kafka.connect.data}; the logical
 * types of Avro 1.12.
 */
final class SemanticType {
  /** The type of a value without a schema. */
  static final SemanticType UNKNOWN = new SemanticType(null, "", 0);

  private static final int SCALE_MAX = 10_000;
  private static final int BYTES_MAX = 1_000;

  /** Names of integer types that are timestamps, with their unit. */
  private static final Map<String, ChronoUnit> TIMESTAMPS =
      Map.of(
          "timestamp-millis", ChronoUnit.MILLIS,
          "timestamp-micros", ChronoUnit.MICROS,
          "timestamp-nanos", ChronoUnit.NANOS,
          "local-timestamp-millis", ChronoUnit.MILLIS,
          "local-timestamp-micros", ChronoUnit.MICROS,
          "local-timestamp-nanos", ChronoUnit.NANOS,
          "io.debezium.time.Timestamp", ChronoUnit.MILLIS,
          "io.debezium.time.MicroTimestamp", ChronoUnit.MICROS,
          "io.debezium.time.NanoTimestamp", ChronoUnit.NANOS,
          "org.apache.kafka.connect.data.Timestamp", ChronoUnit.MILLIS);

  private final String type;
  private final String name;
  private final int scale;
  private final Map<String, SemanticType> children = new HashMap<>();

  private SemanticType(String type, String name, int scale) {
    this.type = type;
    this.name = name;
    this.scale = scale;
  }

  /** Parses a schema of Kafka Connect's JSON converter. */
  static SemanticType of(JsonNode schema) {
    int scale = schema.path("parameters").path("scale").asInt(0);
    SemanticType meaning = new SemanticType(schema.path("type").asText(""), schema.path("name").asText(""), scale);
    for (JsonNode field : schema.path("fields")) meaning.children.put(field.path("field").asText(), of(field));
    if (schema.has("items")) meaning.children.put("element", of(schema.get("items")));
    if (schema.has("keys")) meaning.children.put("key", of(schema.get("keys")));
    if (schema.has("values")) meaning.children.put("value", of(schema.get("values")));
    return meaning;
  }

  /**
   * Returns the type of a struct's field, of an array's {@code element}, or of a map's {@code key} or {@code value}.
   */
  SemanticType child(String field) {
    return children.getOrDefault(field, UNKNOWN);
  }

  boolean isKnown() {
    return type != null;
  }

  /** Returns whether the schema names a semantic type, so that the options of the query do not apply. */
  boolean hasName() {
    return !name.isEmpty();
  }

  boolean isBytes() {
    return "bytes".equals(type);
  }

  boolean isDate() {
    return isDate(name);
  }

  boolean isDecimal() {
    return isDecimal(name);
  }

  /** Returns whether the value is the little-endian bytes of a BIT column. */
  boolean isBits() {
    return name.equals("io.debezium.data.Bits");
  }

  boolean isVariableScale() {
    return isVariableScale(name);
  }

  int scale() {
    return scale;
  }

  /** Returns the unit of a numeric timestamp, or null. */
  ChronoUnit timestampUnit() {
    return timestampUnit(name);
  }

  static ChronoUnit timestampUnit(String name) {
    return TIMESTAMPS.get(name);
  }

  static boolean isDate(String name) {
    return name.equals("date")
        || name.equals("io.debezium.time.Date")
        || name.equals("org.apache.kafka.connect.data.Date");
  }

  static boolean isDecimal(String name) {
    return name.equals("decimal") || name.equals("org.apache.kafka.connect.data.Decimal");
  }

  static boolean isVariableScale(String name) {
    return name.equals("io.debezium.data.VariableScaleDecimal");
  }

  /** Returns the text of a decimal from its unscaled two's complement bytes, or null if they are invalid. */
  static String decimalText(byte[] digits, int scale) {
    if (digits.length == 0 || digits.length > BYTES_MAX || Math.abs((long) scale) > SCALE_MAX) return null;
    return new BigDecimal(new BigInteger(digits), scale).toPlainString();
  }
}
