package io.streamhouse.spark;

import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** Some rows of a column, by their places in it. The column is its reader's, which closes it. */
final class ChosenRows extends ColumnVector {
  private final ColumnVector inner;
  private final int[] places;
  private final int count;

  /** Takes the first {@code count} places. */
  ChosenRows(ColumnVector inner, int[] places, int count) {
    super(inner.dataType());
    this.inner = inner;
    this.places = places;
    this.count = count;
  }

  @Override
  public void close() {}

  @Override
  public boolean hasNull() {
    return inner.hasNull();
  }

  @Override
  public int numNulls() {
    int found = 0;
    for (int row = 0; row < count && inner.hasNull(); row++) found += isNullAt(row) ? 1 : 0;
    return found;
  }

  @Override
  public boolean isNullAt(int row) {
    return inner.isNullAt(places[row]);
  }

  @Override
  public boolean getBoolean(int row) {
    return inner.getBoolean(places[row]);
  }

  @Override
  public byte getByte(int row) {
    return inner.getByte(places[row]);
  }

  @Override
  public short getShort(int row) {
    return inner.getShort(places[row]);
  }

  @Override
  public int getInt(int row) {
    return inner.getInt(places[row]);
  }

  @Override
  public long getLong(int row) {
    return inner.getLong(places[row]);
  }

  @Override
  public float getFloat(int row) {
    return inner.getFloat(places[row]);
  }

  @Override
  public double getDouble(int row) {
    return inner.getDouble(places[row]);
  }

  @Override
  public ColumnarArray getArray(int row) {
    return inner.getArray(places[row]);
  }

  @Override
  public ColumnarMap getMap(int row) {
    return inner.getMap(places[row]);
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    return inner.getDecimal(places[row], precision, scale);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return inner.getUTF8String(places[row]);
  }

  @Override
  public byte[] getBinary(int row) {
    return inner.getBinary(places[row]);
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    return new ChosenRows(inner.getChild(ordinal), places, count);
  }
}
