package io.streamhouse.spark.write;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

/** Rows of UPDATE, DELETE and MERGE as Python takes them: the kind, the key that was read, and the new row. */
class RowDeltaWriterTest {
  private static final StructType WRITTEN =
      new StructType().add("kind", "string").add("old_id", "bigint").add("id", "bigint").add("v", "int");

  private static final class Message implements WriterCommitMessage {}

  private final List<String> written = new ArrayList<>();
  private int closed;

  private DataWriterFactory python() {
    return (partition, task) ->
        new DataWriter<>() {
          @Override
          public void write(InternalRow row) {
            written.add(
                row.getUTF8String(0) + " " + (row.isNullAt(1) ? null : row.getLong(1)) + " "
                    + (row.isNullAt(2) ? null : row.getLong(2)) + " " + (row.isNullAt(3) ? null : row.getInt(3)));
          }

          @Override
          public WriterCommitMessage commit() {
            return new Message();
          }

          @Override
          public void abort() {}

          @Override
          public void close() {
            closed++;
          }
        };
  }

  private static InternalRow row(Object... values) {
    return new GenericInternalRow(values);
  }

  @Test
  void aTaskWritesItsRowsInOneChunk() throws IOException {
    RowDeltaWriter writer = new RowDeltaWriter(python(), 0, 0, WRITTEN, 2);
    GenericInternalRow reused = new GenericInternalRow(new Object[] {1L, 10});
    writer.insert(reused);
    reused.update(0, 9L);
    writer.update(row(), row(2L), row(2L, 20));
    writer.delete(row(), row(3L));
    assertTrue(written.isEmpty());
    ChunkCommitMessages messages = (ChunkCommitMessages) writer.commit();
    assertEquals(List.of("insert null 1 10", "update 2 2 20", "delete 3 null null"), written);
    assertEquals(1, messages.chunks.size());
    assertEquals(1, closed);
  }

  @Test
  void aTaskWithoutRowsHasNoChunk() throws IOException {
    assertTrue(((ChunkCommitMessages) new RowDeltaWriter(python(), 0, 0, WRITTEN, 2).commit()).chunks.isEmpty());
    assertEquals(0, closed);
  }

  /** A task that did not finish has no message, and its position in the list is kept. */
  @Test
  void theCommitContainsTheMessagesOfAllChunks() {
    List<WriterCommitMessage> committed = new ArrayList<>();
    BatchWrite inner =
        new BatchWrite() {
          @Override
          public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
            throw new UnsupportedOperationException();
          }

          @Override
          public void commit(WriterCommitMessage[] messages) {
            committed.addAll(Arrays.asList(messages));
          }

          @Override
          public void abort(WriterCommitMessage[] messages) {
            committed.addAll(Arrays.asList(messages));
          }
        };
    ChunkCommitMessages two = new ChunkCommitMessages();
    two.chunks.addAll(List.of(new Message(), new Message()));
    Write python =
        new Write() {
          @Override
          public BatchWrite toBatch() {
            return inner;
          }
        };
    DeltaBatchWrite write = new RowDeltaWrite(null, python, () -> python, WRITTEN).toBatch();
    write.commit(new WriterCommitMessage[] {two, new ChunkCommitMessages()});
    assertEquals(two.chunks, committed);
    committed.clear();
    write.abort(new WriterCommitMessage[] {null, two});
    assertEquals(3, committed.size());
    assertNull(committed.get(0));
  }
}
