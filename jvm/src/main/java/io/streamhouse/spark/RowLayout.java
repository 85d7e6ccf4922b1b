package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.Base64;
import java.util.BitSet;
import java.util.List;
import org.apache.arrow.compression.CommonsCompressionFactory;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How rows that were written with one schema become Spark's rows, as Python describes it: for each of Spark's columns
 * the stored one, or -1 where the rows have none, or the name of one that follows from the place in the log.
 */
final class RowLayout implements AutoCloseable {
  private static final String CHANGE_TYPE = "_change_type";

  private final JsonNode columns;
  private final StructType schema;
  private final UTF8String[] kinds;
  private final BufferAllocator allocator;
  private final BitSet stored = new BitSet();
  private final ChosenColumns chosen;
  private boolean isChangelog;
  private final VectorSchemaRoot root;
  private final VectorLoader loader;

  RowLayout(JsonNode described, StructType schema, List<String> kinds, BufferAllocator allocator) {
    this.columns = described.get("columns");
    this.schema = schema;
    this.kinds = kinds.stream().map(UTF8String::fromString).toArray(UTF8String[]::new);
    this.allocator = allocator;
    byte[] arrow = Base64.getDecoder().decode(described.get("arrow").asText());
    try (ReadChannel stored = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(arrow)))) {
      chosen = chosen(MessageSerializer.deserializeSchema(stored));
    } catch (IOException error) {
      throw new IllegalStateException("not an Arrow schema", error);
    }
    root = VectorSchemaRoot.create(chosen.schema, allocator);
    loader = new VectorLoader(root, CommonsCompressionFactory.INSTANCE);
  }

  /** Chooses the stored columns that are asked for. */
  private ChosenColumns chosen(Schema written) {
    isChangelog = written.getFields().get(0).getName().equals(CHANGE_TYPE);
    for (JsonNode column : columns) {
      if (column.isInt() && column.asInt() >= 0) stored.set(column.asInt());
      if (isChangelog && column.asText().equals(CHANGE_TYPE)) stored.set(0);
    }
    return new ChosenColumns(written, stored);
  }

  /** The vector of a stored column, by its number among all. */
  private FieldVector vector(int number) {
    return root.getVector(stored.get(0, number).cardinality());
  }

  /** The rows of a batch of a segment. They are valid until the next batch is loaded. */
  ColumnarBatch load(LogSegment segment, int batch, long firstRow, long firstRowId) throws IOException {
    segment.load(batch, chosen, allocator, loader);
    if (root.getRowCount() != segment.rowsOf(batch)) {
      throw Errors.corrupt(
          "batch " + batch + " of a segment of bucket " + segment.bucket + " has " + root.getRowCount()
              + " rows, the commit record says " + segment.rowsOf(batch));
    }
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = column(columns.get(i), schema.apply(i).dataType(), segment, firstRow, firstRowId);
    }
    return new ColumnarBatch(vectors, root.getRowCount());
  }

  private ColumnVector column(JsonNode asked, DataType type, LogSegment segment, long firstRow, long firstRowId) {
    if (asked.isInt()) return asked.asInt() < 0 ? nulls(type) : new PythonColumn(vector(asked.asInt()));
    long offset = segment.base + firstRow;
    switch (asked.asText()) {
      case "_bucket":
        return PlaceColumn.ofNumbers(type, row -> segment.bucket);
      case "_log_offset":
        return PlaceColumn.ofNumbers(type, row -> offset + row);
      case "_row_id":
        return PlaceColumn.ofNumbers(type, row -> firstRowId + offset + row);
      case "_commit_timestamp":
        return PlaceColumn.ofNumbers(type, row -> segment.timeMs(firstRow + row) * 1000);
      case CHANGE_TYPE:
        if (!isChangelog) return PlaceColumn.ofTexts(type, row -> kinds[segment.isUpdated(firstRow + row) ? 2 : 0]);
        TinyIntVector kind = (TinyIntVector) vector(0);
        return PlaceColumn.ofTexts(type, row -> kinds[kind.get(row)]);
      default:
        throw new IllegalStateException("unknown column " + asked);
    }
  }

  private ColumnVector nulls(DataType type) {
    ConstantColumnVector found = new ConstantColumnVector(root.getRowCount(), type);
    found.setNull();
    return found;
  }

  @Override
  public void close() {
    root.close();
  }
}
