package io.streamhouse.spark.read;

import java.util.Arrays;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
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
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.vectorized.ColumnVector;

/**
 * The rows of a batch that are left, as ranges of their places in ascending order. In the vectors of Spark's Parquet
 * reader they are moved to the front, since the reader fills these anew for its next batch: then operators see vectors
 * of the class that they see elsewhere, and no place is looked up. Other columns are read through a list of places.
 */
final class SelectionVector {
  /** Rows of a range, on average, from which on moving ranges takes less time than looking places up. */
  private static final int RANGE_ROWS_MIN = 8;

  private int[] bounds = new int[64];
  private int ranges;
  private int[] positions;

  /** How many rows there are. */
  int count;

  /** Adds the rows at places from one on, up to another, if there are any. */
  void addRange(int start, int end) {
    if (start >= end) return;
    if (2 * ranges == bounds.length) bounds = Arrays.copyOf(bounds, 4 * ranges);
    bounds[2 * ranges] = start;
    bounds[2 * ranges + 1] = end;
    ranges++;
    count += end - start;
  }

  /** The rows of a column. */
  ColumnVector select(ColumnVector column) {
    if (column instanceof ConstantColumnVector) return column;
    if (column instanceof WritableColumnVector && count >= ranges * RANGE_ROWS_MIN) {
      WritableColumnVector writable = (WritableColumnVector) column;
      ValueMover mover = writable.hasDictionary() ? INTS : moverFor(writable.dataType());
      if (writable.isAllNull()) return writable;
      if (mover != null) {
        compact(writable, mover);
        return writable;
      }
    }
    return new SelectedColumnVector(column, positions(), count);
  }

  private int[] positions() {
    if (positions != null) return positions;
    positions = new int[count];
    int at = 0;
    for (int i = 0; i < ranges; i++) {
      for (int position = bounds[2 * i]; position < bounds[2 * i + 1]; position++) positions[at++] = position;
    }
    return positions;
  }

  private void compact(WritableColumnVector column, ValueMover mover) {
    WritableColumnVector stored = column.hasDictionary() ? column.getDictionaryIds() : column;
    boolean hasNull = column.hasNull();
    int to = 0;
    for (int i = 0; i < ranges; i++) {
      int from = bounds[2 * i];
      int rows = bounds[2 * i + 1] - from;
      if (from != to) {
        mover.move(stored, to, from, rows);
        for (int row = 0; hasNull && row < rows; row++) moveNull(column, to + row, from + row);
      }
      to += rows;
    }
  }

  private static void moveNull(WritableColumnVector column, int to, int from) {
    boolean isNull = column.isNullAt(from);
    if (isNull == column.isNullAt(to)) return;
    if (isNull) column.putNull(to);
    else column.putNotNull(to);
  }

  /** Moves the values of rows to places before theirs. */
  private interface ValueMover {
    void move(WritableColumnVector column, int to, int from, int rows);
  }

  private static final ValueMover INTS =
      (column, to, from, rows) -> column.putInts(to, rows, column.getInts(from, rows), 0);
  private static final ValueMover LONGS =
      (column, to, from, rows) -> column.putLongs(to, rows, column.getLongs(from, rows), 0);
  private static final ValueMover BYTES =
      (column, to, from, rows) -> column.putBytes(to, rows, column.getBytes(from, rows), 0);
  private static final ValueMover SHORTS =
      (column, to, from, rows) -> column.putShorts(to, rows, column.getShorts(from, rows), 0);
  private static final ValueMover FLOATS =
      (column, to, from, rows) -> column.putFloats(to, rows, column.getFloats(from, rows), 0);
  private static final ValueMover DOUBLES =
      (column, to, from, rows) -> column.putDoubles(to, rows, column.getDoubles(from, rows), 0);

  /** Texts and bytes lie one behind another, and a row has the position and the length of its own. */
  private static final ValueMover ARRAYS =
      (column, to, from, rows) -> {
        for (int i = 0; i < rows; i++) {
          column.putArray(to + i, column.getArrayOffset(from + i), column.getArrayLength(from + i));
        }
      };

  /** How Spark stores values of a type; null for those that have columns inside. */
  private static ValueMover moverFor(DataType type) {
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) return LONGS;
    if (type instanceof IntegerType || type instanceof DateType) return INTS;
    if (type instanceof StringType || type instanceof BinaryType) return ARRAYS;
    if (type instanceof DoubleType) return DOUBLES;
    if (type instanceof FloatType) return FLOATS;
    if (type instanceof BooleanType || type instanceof ByteType) return BYTES;
    if (type instanceof ShortType) return SHORTS;
    if (!(type instanceof DecimalType)) return null;
    int precision = ((DecimalType) type).precision();
    return precision <= Decimal.MAX_INT_DIGITS() ? INTS : precision <= Decimal.MAX_LONG_DIGITS() ? LONGS : ARRAYS;
  }
}
