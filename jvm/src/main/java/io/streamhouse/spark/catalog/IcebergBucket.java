package io.streamhouse.spark.catalog;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;

/** The bound {@code bucket} function for one key type. */
class IcebergBucket implements ScalarFunction<Integer>, Serializable {
  private static final long serialVersionUID = 1L;
  final DataType keyType;

  IcebergBucket(DataType keyType) {
    this.keyType = keyType;
  }

  static boolean supports(DataType type) {
    return type instanceof IntegerType
        || type instanceof LongType
        || type instanceof ShortType
        || type instanceof ByteType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || type instanceof DecimalType
        || type instanceof StringType
        || type instanceof BinaryType;
  }

  @Override
  public String name() {
    return "bucket";
  }

  @Override
  public String canonicalName() {
    return "streamhouse.bucket(" + keyType.catalogString() + ")";
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.IntegerType, keyType};
  }

  @Override
  public DataType resultType() {
    return DataTypes.IntegerType;
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public Integer produceResult(InternalRow input) {
    return bucketOf(input, 1, input.getInt(0));
  }

  /** Returns the bucket of a key. Null is in bucket 0. */
  final int bucketOf(InternalRow input, int position, int buckets) {
    return input.isNullAt(position) ? 0 : (hash(input, position) & Integer.MAX_VALUE) % buckets;
  }

  private int hash(InternalRow input, int position) {
    if (keyType instanceof StringType) {
      UTF8String text = input.getUTF8String(position);
      return Murmur3_x86_32.hashUnsafeBytes2(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), 0);
    }
    if (keyType instanceof BinaryType) return hashBytes(input.getBinary(position));
    if (keyType instanceof DecimalType) {
      DecimalType type = (DecimalType) keyType;
      Decimal value = input.getDecimal(position, type.precision(), type.scale());
      return hashBytes(value.toJavaBigDecimal().unscaledValue().toByteArray());
    }
    if (keyType instanceof LongType || keyType instanceof TimestampType || keyType instanceof TimestampNTZType) {
      return Murmur3_x86_32.hashLong(input.getLong(position), 0);
    }
    if (keyType instanceof ShortType) return Murmur3_x86_32.hashLong(input.getShort(position), 0);
    if (keyType instanceof ByteType) return Murmur3_x86_32.hashLong(input.getByte(position), 0);
    return Murmur3_x86_32.hashLong(input.getInt(position), 0);
  }

  private static int hashBytes(byte[] value) {
    return Murmur3_x86_32.hashUnsafeBytes2(value, Platform.BYTE_ARRAY_OFFSET, value.length, 0);
  }
}
