package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.read.ArrowColumn;
import io.streamhouse.spark.util.SparkErrors;
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
 * Maps rows that were written with one schema to the rows of the query. Python describes the source of each column: the
 * ordinal of a stored column, -1 for none, or the name of a column that is computed from the position in the log.
 */
final class RowLayout implements AutoCloseable {
  private static final String CHANGE_TYPE = "_change_type";

  private final JsonNode columns;
  private final StructType schema;
  private final UTF8String[] changeTypes;
  private final BufferAllocator allocator;
  private final BitSet storedOrdinals = new BitSet();
  private final ColumnSelection selection;
  private boolean isChangelog;
  private final VectorSchemaRoot root;
  private final VectorLoader loader;

  RowLayout(JsonNode layout, StructType schema, List<String> changeTypes, BufferAllocator allocator) {
    this.columns = layout.get("columns");
    this.schema = schema;
    this.changeTypes = changeTypes.stream().map(UTF8String::fromString).toArray(UTF8String[]::new);
    this.allocator = allocator;
    byte[] arrow = Base64.getDecoder().decode(layout.get("arrow").asText());
    try (ReadChannel channel = new ReadChannel(Channels.newChannel(new ByteArrayInputStream(arrow)))) {
      selection = selectColumns(MessageSerializer.deserializeSchema(channel));
    } catch (IOException error) {
      throw new IllegalStateException("not an Arrow schema", error);
    }
    root = VectorSchemaRoot.create(selection.schema, allocator);
    loader = new VectorLoader(root, CommonsCompressionFactory.INSTANCE);
  }

  /** Selects the stored columns that the query reads. */
  private ColumnSelection selectColumns(Schema written) {
    isChangelog = written.getFields().get(0).getName().equals(CHANGE_TYPE);
    for (JsonNode column : columns) {
      if (column.isInt() && column.asInt() >= 0) storedOrdinals.set(column.asInt());
      if (isChangelog && column.asText().equals(CHANGE_TYPE)) storedOrdinals.set(0);
    }
    return new ColumnSelection(written, storedOrdinals);
  }

  /** Returns the vector of a stored column by its ordinal in the written schema. */
  private FieldVector storedVector(int number) {
    return root.getVector(storedOrdinals.get(0, number).cardinality());
  }

  /** Loads a batch of a segment. The result is valid until the next batch is loaded. */
  ColumnarBatch load(LogSegment segment, int batch, long firstRow, long firstRowId) throws IOException {
    segment.load(batch, selection, allocator, loader);
    if (root.getRowCount() != segment.rowCount(batch)) {
      throw SparkErrors.corruptData(
          "batch " + batch + " of a segment of bucket " + segment.bucket + " has " + root.getRowCount()
              + " rows, expected " + segment.rowCount(batch));
    }
    ColumnVector[] vectors = new ColumnVector[schema.length()];
    for (int i = 0; i < vectors.length; i++) {
      vectors[i] = column(columns.get(i), schema.apply(i).dataType(), segment, firstRow, firstRowId);
    }
    return new ColumnarBatch(vectors, root.getRowCount());
  }

  private ColumnVector column(JsonNode spec, DataType type, LogSegment segment, long firstRow, long firstRowId) {
    if (spec.isInt()) return spec.asInt() < 0 ? nullVector(type) : new ArrowColumn(storedVector(spec.asInt()));
    long offset = segment.baseOffset + firstRow;
    switch (spec.asText()) {
      case "_bucket":
        return OffsetColumnVector.ofLongs(type, row -> segment.bucket);
      case "_log_offset":
        return OffsetColumnVector.ofLongs(type, row -> offset + row);
      case "_row_id":
        return OffsetColumnVector.ofLongs(type, row -> firstRowId + offset + row);
      case "_commit_timestamp":
        return OffsetColumnVector.ofLongs(type, row -> segment.timeMs(firstRow + row) * 1000);
      case CHANGE_TYPE:
        if (!isChangelog) {
          return OffsetColumnVector.ofStrings(type, row -> changeTypes[segment.isUpdated(firstRow + row) ? 2 : 0]);
        }
        TinyIntVector kind = (TinyIntVector) storedVector(0);
        return OffsetColumnVector.ofStrings(type, row -> changeTypes[kind.get(row)]);
      default:
        throw new IllegalStateException("unknown column " + spec);
    }
  }

  private ColumnVector nullVector(DataType type) {
    ConstantColumnVector vector = new ConstantColumnVector(root.getRowCount(), type);
    vector.setNull();
    return vector;
  }

  @Override
  public void close() {
    root.close();
  }
}
