package io.streamhouse.spark.read;

import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The selected rows of a column, by their position. The reader owns and closes the column. */
final class SelectedColumnVector extends ColumnVector {
  private final ColumnVector inner;
  private final int[] positions;
  private final int count;

  /** Selects the first {@code count} of the positions. */
  SelectedColumnVector(ColumnVector inner, int[] positions, int count) {
    super(inner.dataType());
    this.inner = inner;
    this.positions = positions;
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
    int nulls = 0;
    for (int row = 0; row < count && inner.hasNull(); row++) nulls += isNullAt(row) ? 1 : 0;
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return inner.isNullAt(positions[row]);
  }

  @Override
  public boolean getBoolean(int row) {
    return inner.getBoolean(positions[row]);
  }

  @Override
  public byte getByte(int row) {
    return inner.getByte(positions[row]);
  }

  @Override
  public short getShort(int row) {
    return inner.getShort(positions[row]);
  }

  @Override
  public int getInt(int row) {
    return inner.getInt(positions[row]);
  }

  @Override
  public long getLong(int row) {
    return inner.getLong(positions[row]);
  }

  @Override
  public float getFloat(int row) {
    return inner.getFloat(positions[row]);
  }

  @Override
  public double getDouble(int row) {
    return inner.getDouble(positions[row]);
  }

  @Override
  public ColumnarArray getArray(int row) {
    return inner.getArray(positions[row]);
  }

  @Override
  public ColumnarMap getMap(int row) {
    return inner.getMap(positions[row]);
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    return inner.getDecimal(positions[row], precision, scale);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return inner.getUTF8String(positions[row]);
  }

  @Override
  public byte[] getBinary(int row) {
    return inner.getBinary(positions[row]);
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    return new SelectedColumnVector(inner.getChild(ordinal), positions, count);
  }
}
