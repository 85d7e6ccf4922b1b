package io.streamhouse.spark;

import java.util.function.IntFunction;
import java.util.function.IntToLongFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column that follows from where a row lies in the log, such as its offset: of whole numbers, or of texts. */
final class PlaceColumn extends ColumnVector {
  private final IntToLongFunction numbers;
  private final IntFunction<UTF8String> texts;

  private PlaceColumn(DataType type, IntToLongFunction numbers, IntFunction<UTF8String> texts) {
    super(type);
    this.numbers = numbers;
    this.texts = texts;
  }

  static PlaceColumn ofNumbers(DataType type, IntToLongFunction numbers) {
    return new PlaceColumn(type, numbers, null);
  }

  static PlaceColumn ofTexts(DataType type, IntFunction<UTF8String> texts) {
    return new PlaceColumn(type, null, texts);
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
    return (int) numbers.applyAsLong(row);
  }

  @Override
  public long getLong(int row) {
    return numbers.applyAsLong(row);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return texts.apply(row);
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
