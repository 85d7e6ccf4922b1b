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
  private static Object returned(Object value, DataType type) {
    return ValueJson.read(Json.parse(ValueJson.of(value).toString()), type);
  }

  private static void assertReturns(Object value, DataType type) {
    assertEquals(value, returned(value, type), type.simpleString());
  }

  @Test
  void numbersComeBackAsTheyWere() {
    assertReturns(Byte.MIN_VALUE, DataTypes.ByteType);
    assertReturns(Short.MAX_VALUE, DataTypes.ShortType);
    assertReturns(Integer.MIN_VALUE, DataTypes.IntegerType);
    assertReturns(-719162, DataTypes.DateType);
    assertReturns(Long.MAX_VALUE, DataTypes.LongType);
    assertReturns(Long.MIN_VALUE, DataTypes.TimestampType);
    assertReturns(1L << 53 | 1, DataTypes.TimestampNTZType);
    assertReturns(true, DataTypes.BooleanType);
    assertReturns(0.1, DataTypes.DoubleType);
    assertReturns(-0.0, DataTypes.DoubleType);
    assertReturns(Double.MIN_VALUE, DataTypes.DoubleType);
    assertReturns(3.4028235e38f, DataTypes.FloatType);
  }

  /** JSON has no such numbers. They are encoded as strings that Python's float parses. */
  @Test
  void floatsThatAreNoNumbersComeBack() {
    assertEquals("\"NaN\"", ValueJson.of(Double.NaN).toString());
    assertEquals("\"-Infinity\"", ValueJson.of(Float.NEGATIVE_INFINITY).toString());
    assertReturns(Double.NaN, DataTypes.DoubleType);
    assertReturns(Double.POSITIVE_INFINITY, DataTypes.DoubleType);
    assertReturns(Float.NaN, DataTypes.FloatType);
    assertReturns(Float.NEGATIVE_INFINITY, DataTypes.FloatType);
  }

  @Test
  void decimalsTextsAndBytesComeBack() {
    DataType type = DataTypes.createDecimalType(38, 10);
    assertReturns(Decimal.apply(new BigDecimal("-1234567890123456789012345678.0000000001"), 38, 10), type);
    assertReturns(UTF8String.fromString("Zürich \"𝄞\"\n"), DataTypes.StringType);
    byte[] bytes = {0, -1, 127, -128};
    assertArrayEquals(bytes, (byte[]) returned(bytes, DataTypes.BinaryType));
  }

  @Test
  void nullIsNullOfEachType() {
    assertTrue(ValueJson.of(null).isNull());
    assertNull(ValueJson.read(null, DataTypes.LongType));
    assertNull(returned(null, DataTypes.createDecimalType(9, 2)));
  }

  @Test
  void valuesWithoutAFormAreSaidToHaveNone() {
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
