package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import io.streamhouse.spark.util.Json;
import java.math.BigDecimal;
import java.util.Base64;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** Encodes single values in Spark's internal form as JSON and decodes them. */
public final class ValueJson {
  private ValueJson() {}

  /** Encodes a value in Spark's internal form. Returns null if its type has no encoding. */
  public static JsonNode of(Object value) {
    ArrayNode holder = Json.array();
    if (value == null) return holder.addNull().get(0);
    if (value instanceof Boolean) return holder.add((Boolean) value).get(0);
    if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long) {
      return holder.add(((Number) value).longValue()).get(0);
    }
    if (value instanceof Float || value instanceof Double) {
      double number = ((Number) value).doubleValue();
      return Double.isFinite(number) ? holder.add(number).get(0) : holder.add(Double.toString(number)).get(0);
    }
    if (value instanceof byte[]) return holder.add(Base64.getEncoder().encodeToString((byte[]) value)).get(0);
    if (value instanceof UTF8String || value instanceof Decimal) return holder.add(value.toString()).get(0);
    return null;
  }

  /** Decodes a value of an answer into Spark's internal form. */
  static Object read(JsonNode node, DataType type) {
    if (node == null || node.isNull()) return null;
    if (type instanceof BooleanType) return node.asBoolean();
    if (type instanceof ByteType) return (byte) node.asInt();
    if (type instanceof ShortType) return (short) node.asInt();
    if (type instanceof IntegerType || type instanceof DateType) return node.asInt();
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) {
      return node.asLong();
    }
    if (type instanceof FloatType) return node.isTextual() ? Float.valueOf(node.asText()) : (float) node.asDouble();
    if (type instanceof DoubleType) return node.isTextual() ? Double.valueOf(node.asText()) : node.asDouble();
    if (type instanceof DecimalType) {
      DecimalType decimal = (DecimalType) type;
      return Decimal.apply(new BigDecimal(node.asText()), decimal.precision(), decimal.scale());
    }
    if (type instanceof BinaryType) return Base64.getDecoder().decode(node.asText());
    if (type instanceof StringType) return UTF8String.fromString(node.asText());
    throw new IllegalStateException("no values of type " + type + " in answers");
  }

  public static InternalRow readRow(JsonNode values, StructType schema) {
    Object[] row = new Object[schema.length()];
    for (int i = 0; i < row.length; i++) row[i] = read(values.get(i), schema.fields()[i].dataType());
    return new GenericInternalRow(row);
  }
}
