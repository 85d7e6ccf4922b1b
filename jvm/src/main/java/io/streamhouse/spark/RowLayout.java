package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.Base64;
import java.util.List;
import org.apache.arrow.compression.CommonsCompressionFactory;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
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
  private final JsonNode columns;
  private final StructType schema;
  private final UTF8String[] kinds;
  private final BufferAllocator allocator;
  private final VectorSchemaRoot root;
  private final VectorLoader loader;

  RowLayout(JsonNode described, StructType schema, List<String> kinds, BufferAllocator allocator) {
    this.columns = described.get("columns");
    this.schema = schema;
    this.kinds = kinds.stream().map(UTF8String::fromString).toArray(UTF8String[]::new);
    this.allocator = allocator;
    byte[] arrow = Base64.getDecoder().decode(described.get("arrow").asText());
    try (ReadChannel stored = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(arrow)))) {
      root = VectorSchemaRoot.create(MessageSerializer.deserializeSchema(stored), allocator);
    } catch (IOException error) {
      throw new IllegalStateException("not an Arrow schema", error);
    }
    loader = new VectorLoader(root, CommonsCompressionFactory.INSTANCE);
  }

  /** The rows of a batch of a segment. They are valid until the next batch is loaded. */
  ColumnarBatch load(LogSegment segment, int batch, long firstRow, long firstRowId) throws IOException {
    try (ArrowRecordBatch found = segment.read(batch, allocator)) {
      loader.load(found);
    }
    if (root.getRowCount() != segment.rowsOf(batch)) {
      throw LogSegment.corrupt(
          "batch " + batch + " of a segment of bucket " + segment.bucket + " has " + root.getRowCount()
              + " rows, the commit record says " + segment.rowsOf(batch));
    }
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = column(columns.get(i), schema.apply(i).dataType(), segment, firstRow, firstRowId);
    }
    return new ColumnarBatch(vectors, root.getRowCount());
  }

  private ColumnVector column(JsonNode stored, DataType type, LogSegment segment, long firstRow, long firstRowId) {
    if (stored.isInt()) return stored.asInt() < 0 ? nulls(type) : new PythonColumn(root.getVector(stored.asInt()));
    long offset = segment.base + firstRow;
    switch (stored.asText()) {
      case "_bucket":
        return PlaceColumn.ofNumbers(type, row -> segment.bucket);
      case "_log_offset":
        return PlaceColumn.ofNumbers(type, row -> offset + row);
      case "_row_id":
        return PlaceColumn.ofNumbers(type, row -> firstRowId + offset + row);
      case "_commit_timestamp":
        return PlaceColumn.ofNumbers(type, row -> segment.timeMs(firstRow + row) * 1000);
      case "_change_type":
        if (!root.getSchema().getFields().get(0).getName().equals("_change_type")) {
          return PlaceColumn.ofTexts(type, row -> kinds[0]);
        }
        TinyIntVector kind = (TinyIntVector) root.getVector(0);
        return PlaceColumn.ofTexts(type, row -> kinds[kind.get(row)]);
      default:
        throw new IllegalStateException("unknown column " + stored);
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
