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
 * The selected rows of a batch, as ascending ranges of positions.
 *
 *
 * <p>In the vectors of Spark's Parquet reader, selected values are moved to the front, since the reader refills the
 * vectors for its next batch. Operators then see the usual vector class and no position is looked up. Other columns are
 * read through a list of positions.
 */
final class SelectionVector {
  /** The average length of ranges from which moving values is faster than looking up positions. */
  private static final int RANGE_ROWS_MIN = 8;

  private int[] bounds = new int[64];
  private int ranges;
  private int[] positions;

  /** The number of selected rows. */
  int count;

  /** Selects the rows from {@code start}, inclusive, to {@code end}, exclusive. */
  void addRange(int start, int end) {
    if (start >= end) return;
    if (2 * ranges == bounds.length) bounds = Arrays.copyOf(bounds, 4 * ranges);
    bounds[2 * ranges] = start;
    bounds[2 * ranges + 1] = end;
    ranges++;
    count += end - start;
  }

  /** Returns the selected rows of a column. */
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

  /** Moves values of rows to lower positions. */
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

  /** Moves the offsets and lengths of strings and binary values. Their bytes stay where they are. */
  private static final ValueMover ARRAYS =
      (column, to, from, rows) -> {
        for (int i = 0; i < rows; i++) {
          column.putArray(to + i, column.getArrayOffset(from + i), column.getArrayLength(from + i));
        }
      };

  /** Returns how to move values of a type, or null for a type with nested columns. */
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
