package io.streamhouse.spark.realtime;

import java.util.function.IntFunction;
import java.util.function.IntToLongFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column that is computed from the position of a row in the log, such as its offset. */
final class OffsetColumnVector extends ColumnVector {
  private final IntToLongFunction longs;
  private final IntFunction<UTF8String> strings;

  private OffsetColumnVector(DataType type, IntToLongFunction longs, IntFunction<UTF8String> strings) {
    super(type);
    this.longs = longs;
    this.strings = strings;
  }

  static OffsetColumnVector ofLongs(DataType type, IntToLongFunction longs) {
    return new OffsetColumnVector(type, longs, null);
  }

  static OffsetColumnVector ofStrings(DataType type, IntFunction<UTF8String> strings) {
    return new OffsetColumnVector(type, null, strings);
  }

  @Override
  public boolean isNullAt(int row) {
    return false;
  }

  @Override
  public boolean hasNull() {
    return false;
  }

  @Override
  public int numNulls() {
    return 0;
  }

  @Override
  public int getInt(int row) {
    return (int) longs.applyAsLong(row);
  }

  @Override
  public long getLong(int row) {
    return longs.applyAsLong(row);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return strings.apply(row);
  }

  @Override
  public void close() {}

  @Override
  public boolean getBoolean(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public byte getByte(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public short getShort(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public float getFloat(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public double getDouble(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw new UnsupportedOperationException();
  }

  @Override
  public byte[] getBinary(int row) {
    throw new UnsupportedOperationException();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw new UnsupportedOperationException();
  }
}
