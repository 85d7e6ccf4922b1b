package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.streamhouse.spark.util.Json;
import java.math.BigDecimal;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

class ValueJsonTest {
  /** Encodes a value as text, as it is sent to Python, and decodes it. */
  private static Object roundTrip(Object value, DataType type) {
    return ValueJson.read(Json.parse(ValueJson.of(value).toString()), type);
  }

  private static void assertRoundTrip(Object value, DataType type) {
    assertEquals(value, roundTrip(value, type), type.simpleString());
  }

  @Test
  void numbersRoundTrip() {
    assertRoundTrip(Byte.MIN_VALUE, DataTypes.ByteType);
    assertRoundTrip(Short.MAX_VALUE, DataTypes.ShortType);
    assertRoundTrip(Integer.MIN_VALUE, DataTypes.IntegerType);
    assertRoundTrip(-719162, DataTypes.DateType);
    assertRoundTrip(Long.MAX_VALUE, DataTypes.LongType);
    assertRoundTrip(Long.MIN_VALUE, DataTypes.TimestampType);
    assertRoundTrip(1L << 53 | 1, DataTypes.TimestampNTZType);
    assertRoundTrip(true, DataTypes.BooleanType);
    assertRoundTrip(0.1, DataTypes.DoubleType);
    assertRoundTrip(-0.0, DataTypes.DoubleType);
    assertRoundTrip(Double.MIN_VALUE, DataTypes.DoubleType);
    assertRoundTrip(3.4028235e38f, DataTypes.FloatType);
  }

  /** JSON has no such numbers. They are encoded as strings that Python's float parses. */
  @Test
  void nonFiniteFloatsRoundTrip() {
    assertEquals("\"NaN\"", ValueJson.of(Double.NaN).toString());
    assertEquals("\"-Infinity\"", ValueJson.of(Float.NEGATIVE_INFINITY).toString());
    assertRoundTrip(Double.NaN, DataTypes.DoubleType);
    assertRoundTrip(Double.POSITIVE_INFINITY, DataTypes.DoubleType);
    assertRoundTrip(Float.NaN, DataTypes.FloatType);
    assertRoundTrip(Float.NEGATIVE_INFINITY, DataTypes.FloatType);
  }

  @Test
  void decimalsStringsAndBytesRoundTrip() {
    DataType type = DataTypes.createDecimalType(38, 10);
    assertRoundTrip(Decimal.apply(new BigDecimal("-1234567890123456789012345678.0000000001"), 38, 10), type);
    assertRoundTrip(UTF8String.fromString("Zürich \"𝄞\"\n"), DataTypes.StringType);
    byte[] bytes = {0, -1, 127, -128};
    assertArrayEquals(bytes, (byte[]) roundTrip(bytes, DataTypes.BinaryType));
  }

  @Test
  void nullRoundTripsForEachType() {
    assertTrue(ValueJson.of(null).isNull());
    assertNull(ValueJson.read(null, DataTypes.LongType));
    assertNull(roundTrip(null, DataTypes.createDecimalType(9, 2)));
  }

  @Test
  void valuesWithoutAnEncodingAreNull() {
    assertNull(ValueJson.of(new GenericArrayData(new Object[0])));
    DataType type = DataTypes.createArrayType(DataTypes.LongType);
    assertThrows(IllegalStateException.class, () -> ValueJson.read(Json.parse("[1]"), type));
  }

  @Test
  void rowsHaveTheTypesOfTheirSchema() {
    StructType schema = new StructType().add("a", "int").add("b", "bigint").add("c", "string");
    InternalRow row = ValueJson.readRow(Json.parse("[1, 2, null]"), schema);
    assertEquals(1, row.getInt(0));
    assertEquals(2L, row.getLong(1));
    assertTrue(row.isNullAt(2));
  }
}
