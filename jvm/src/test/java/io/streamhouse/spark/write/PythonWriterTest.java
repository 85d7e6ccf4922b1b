package io.streamhouse.spark.write;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.streamhouse.spark.metrics.MetricsCommitMessage;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

/** A few rows of a stream's task are sent inline. If there are more, Python's writer gets all of them in order. */
class PythonWriterTest {
  private static final StructType SCHEMA = new StructType().add("id", "bigint");
  private static final long BYTES_OF_A_ROW = 16;

  private static final class Message implements WriterCommitMessage {}

  private final List<Long> written = new ArrayList<>();
  private int writers;

  private DataWriter<InternalRow> python() {
    writers++;
    return new DataWriter<>() {
      @Override
      public void write(InternalRow row) {
        written.add(row.getLong(0));
      }

      @Override
      public WriterCommitMessage commit() {
        return new Message();
      }

      @Override
      public void abort() {}

      @Override
      public void close() {}
    };
  }

  /** Returns rows as Spark may pass them on: the same object each time. */
  private static Iterator<InternalRow> rows(long count) {
    GenericInternalRow reused = new GenericInternalRow(1);
    return LongStream.range(0, count)
        .mapToObj(
            id -> {
              reused.update(0, id);
              return (InternalRow) reused;
            })
        .iterator();
  }

  private PythonWriter written(long count, long carriedBytesMax) {
    PythonWriter writer = new PythonWriter(this::python, SCHEMA, carriedBytesMax, false);
    writer.writeAll(rows(count));
    return writer;
  }

  @Test
  void aFewRowsAreSentInline() throws Exception {
    try (PythonWriter writer = written(3, 3 * BYTES_OF_A_ROW)) {
      writer.abort();
    }
    assertEquals(0, writers);
  }

  @Test
  void moreRowsGoToPythonInOrder() throws Exception {
    try (PythonWriter writer = written(1000, 3 * BYTES_OF_A_ROW)) {
      assertInstanceOf(Message.class, writer.commit());
    }
    assertEquals(LongStream.range(0, 1000).boxed().toList(), written);
    assertEquals(1, writers);
  }

  @Test
  void batchWritesSendNoRowsInline() throws Exception {
    try (PythonWriter writer = written(2, 0)) {
      assertInstanceOf(Message.class, writer.commit());
    }
    assertEquals(List.of(0L, 1L), written);
  }

  @Test
  void aStreamsCommitMessageHasTheCounters() throws Exception {
    try (PythonWriter writer = new PythonWriter(this::python, SCHEMA, 0, true)) {
      writer.writeAll(rows(5));
      WriterCommitMessage[] messages = {writer.commit(), new Message()};
      assertEquals(Map.of("recordsWritten", "5"), MetricsCommitMessage.sum(messages));
      for (WriterCommitMessage message : MetricsCommitMessage.unwrap(messages)) {
        assertInstanceOf(Message.class, message);
      }
    }
  }
}
