package io.streamhouse.spark.write;

import io.streamhouse.spark.rpc.InternalOptions;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Writes row changes in the form that Python takes: the kind of change, the key of the row that was read, and the new
 * row.
 */
final class RowDeltaWriter implements DeltaWriter<InternalRow> {
  private static final int CHUNK_ROWS = 1 << 16;
  private static final long CHUNK_BYTES = 32L << 20;
  private final DataWriterFactory pythonWriters;
  private final int partition;
  private final long task;
  private final UnsafeProjection projection;
  private final InternalRow nullKey;
  private final InternalRow nullRow;
  private final ChunkCommitMessages messages = new ChunkCommitMessages();
  private final List<InternalRow> chunk = new ArrayList<>();
  private long chunkBytes;

  RowDeltaWriter(DataWriterFactory pythonWriters, int partition, long task, StructType written, int columns) {
    this.pythonWriters = pythonWriters;
    this.partition = partition;
    this.task = task;
    this.projection = UnsafeProjection.create(written);
    this.nullKey = new GenericInternalRow(written.length() - 1 - columns);
    this.nullRow = new GenericInternalRow(columns);
  }

  @Override
  public void insert(InternalRow row) throws IOException {
    add("insert", nullKey, row);
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    add("update", id, row);
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    add("delete", id, nullRow);
  }

  private void add(String kind, InternalRow id, InternalRow row) throws IOException {
    InternalRow first = new GenericInternalRow(new Object[] {UTF8String.fromString(kind)});
    UnsafeRow copy = projection.apply(new JoinedRow(first, new JoinedRow(id, row))).copy();
    chunk.add(copy);
    chunkBytes += copy.getSizeInBytes();
    if (chunk.size() < CHUNK_ROWS && chunkBytes < CHUNK_BYTES) return;
    // with a local master this also affects other tasks of the stage, whose changes the driver then computes
    TaskContext.get().getLocalProperties().setProperty(InternalOptions.PART_PROPERTY, "true");
    writeChunk();
  }

  private void writeChunk() throws IOException {
    if (chunk.isEmpty()) return;
    try (DataWriter<InternalRow> writer = pythonWriters.createWriter(partition, task)) {
      writer.writeAll(chunk.iterator());
      messages.chunks.add(writer.commit());
    }
    chunk.clear();
    chunkBytes = 0;
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    writeChunk();
    return messages;
  }

  /** Does nothing. Files of staged chunks are invisible orphans, which cleaning removes. */
  @Override
  public void abort() {}

  @Override
  public void close() {}
}
