package io.streamhouse.spark.read;

import org.apache.arrow.vector.ValueVector;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column of an Arrow batch. Like the vectors of Spark's Parquet reader, it is valid until the next batch is read. It
 * wraps {@link ArrowColumnVector} instead of extending it, because Spark 4.3 retains such vectors longer if a Python
 * function follows the scan.
 */
public final class ArrowColumn extends ColumnVector {
  private final ArrowColumnVector inner;

  public ArrowColumn(ValueVector vector) {
    this(new ArrowColumnVector(vector));
  }

  private ArrowColumn(ArrowColumnVector inner) {
    super(inner.dataType());
    this.inner = inner;
  }

  @Override
  public void close() {
    inner.close();
  }

  @Override
  public boolean hasNull() {
    return inner.hasNull();
  }

  @Override
  public int numNulls() {
    return inner.numNulls();
  }

  @Override
  public boolean isNullAt(int row) {
    return inner.isNullAt(row);
  }

  @Override
  public boolean getBoolean(int row) {
    return inner.getBoolean(row);
  }

  @Override
  public byte getByte(int row) {
    return inner.getByte(row);
  }

  @Override
  public short getShort(int row) {
    return inner.getShort(row);
  }

  @Override
  public int getInt(int row) {
    return inner.getInt(row);
  }

  @Override
  public long getLong(int row) {
    return inner.getLong(row);
  }

  @Override
  public float getFloat(int row) {
    return inner.getFloat(row);
  }

  @Override
  public double getDouble(int row) {
    return inner.getDouble(row);
  }

  @Override
  public ColumnarArray getArray(int row) {
    return inner.getArray(row);
  }

  @Override
  public ColumnarMap getMap(int row) {
    return inner.getMap(row);
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    return inner.getDecimal(row, precision, scale);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return inner.getUTF8String(row);
  }

  @Override
  public byte[] getBinary(int row) {
    return inner.getBinary(row);
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    return inner.getChild(ordinal);
  }
}
