package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.StreamSupport;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Rows that are read from a log that Python wrote are committed with their positions, each exactly once. */
class RealTimeWriterTest {
  private static final Path GOLDEN = Path.of(System.getProperty("streamhouse.golden"));
  private static final StructType SCHEMA = new StructType().add("bucket", "int").add("offset", "bigint");
  private static final StructType WRITTEN =
      new StructType()
          .add("__bucket", "int").add("__begin", "bigint").add("__end", "bigint").add("__record", "bigint")
          .add("__attempt", "string").add("bucket", "int").add("offset", "bigint");

  /** The rows of one bucket in one commit. */
  private record Chunk(int bucket, long begin, long end, long record, String attempt, List<Long> offsets) {}

  private final List<Chunk> chunks = new ArrayList<>();
  private String stored = "{}";
  private int storedRequests;
  private int conflicts;
  private JsonNode testCase;

  @BeforeEach
  void aLog() throws IOException {
    testCase = Json.parse(Files.readString(GOLDEN.resolve("follow").resolve("cases.json"))).get(0);
    task(0);
  }

  @AfterEach
  void noTask() {
    TaskContext$.MODULE$.unset();
  }

  private static void task(int attempt) {
    TaskContext$.MODULE$.setTaskContext(
        new TaskContextImpl(
            0, 0, 0, 7, attempt, 1, null, new Properties(), null, TaskMetrics.empty(),
            new scala.math.BigDecimal(java.math.BigDecimal.ONE), scala.collection.immutable.Map$.MODULE$.empty()));
  }

  private LogTailReader reader() {
    ObjectNode task = testCase.get("task").deepCopy();
    Path folder = GOLDEN.resolve(testCase.get("warehouse").asText()).resolve(task.get("folder").asText());
    task.put("follows", true); // up to a record that Python must handle
    return LogTailReaderTest.reader(task, schema(), folder);
  }

  private StructType schema() {
    return (StructType) DataType.fromJson(testCase.get("schema").asText());
  }

  /** Stands for Python's writer, which commits its rows, or reports the stored offsets if it gets none. */
  private DataWriter<InternalRow> python() {
    return new DataWriter<>() {
      private final Map<Integer, Chunk> found = new TreeMap<>();

      @Override
      public void write(InternalRow row) {
        Chunk chunk =
            new Chunk(
                row.getInt(0), row.getLong(1), row.getLong(2), row.getLong(3), row.getUTF8String(4).toString(),
                new ArrayList<>());
        assertEquals(row.getInt(0), row.getInt(5));
        found.computeIfAbsent(row.getInt(0), bucket -> chunk).offsets.add(row.getLong(6));
      }

      @Override
      public WriterCommitMessage commit() {
        if (!found.isEmpty() && conflicts-- > 0) {
          String text = "COMMIT_CONFLICT: version 7 follows -1, and 9 is stored";
          throw new IllegalStateException("\nstreamhouse_spark.errors.CommitConflictError: " + text + "\n");
        }
        chunks.addAll(found.values());
        if (found.isEmpty()) storedRequests++;
        String payload =
            found.isEmpty() ? RealTimeWriter.STORED_KEY + stored : TaskCounters.COUNTS_KEY + "{\"bytesWritten\": 100}";
        return new PythonWriterCommitMessage(("a pickle " + payload + "q.").getBytes(StandardCharsets.ISO_8859_1));
      }

      @Override
      public void abort() {}

      @Override
      public void close() {}
    };
  }

  private RealTimeWriter writer(Map<Integer, Long> initialOffsets) {
    return new RealTimeWriter("sales.target", SCHEMA, WRITTEN, new TreeMap<>(initialOffsets), this::python);
  }

  /** Returns the rows of a query that selects even offsets, as their positions. */
  private Iterator<InternalRow> query(LogTailReader reader) {
    int bucket = schema().fieldIndex("_bucket");
    int offset = schema().fieldIndex("_log_offset");
    return new Iterator<>() {
      private Boolean has;

      @Override
      public boolean hasNext() {
        try {
          while (has == null) {
            long now = System.currentTimeMillis();
            if (!reader.nextWithTimeout(now, 20_000L).hasRecord()) has = false;
            else if (reader.get().getLong(offset) % 2 == 0) has = true;
          }
          return has;
        } catch (IOException e) {
          throw new IllegalStateException(e);
        }
      }

      @Override
      public InternalRow next() {
        has = null;
        Object[] place = {reader.get().getInt(bucket), reader.get().getLong(offset)};
        return new GenericInternalRow(place);
      }
    };
  }

  private void check(LogTailReader reader, Map<Integer, Long> initialOffsets) {
    Map<Integer, Long> ends = new TreeMap<>(initialOffsets);
    Map<Integer, List<Long>> committed = new TreeMap<>();
    long record = testCase.get("task").get("mark").get(0).asLong();
    for (Chunk chunk : chunks) {
      assertEquals(ends.getOrDefault(chunk.bucket, -1L), chunk.begin);
      assertTrue(chunk.offsets.stream().allMatch(offset -> offset >= chunk.begin && offset < chunk.end));
      assertTrue(chunk.record >= record && chunk.record <= reader.getOffset().record);
      record = chunk.record;
      if (record == reader.getOffset().record) assertEquals(reader.getOffset().attempt, chunk.attempt);
      ends.put(chunk.bucket, chunk.end);
      committed.computeIfAbsent(chunk.bucket, bucket -> new ArrayList<>()).addAll(chunk.offsets);
    }
    Map<Integer, List<Long>> expected = new TreeMap<>();
    int bucket = schema().fieldIndex("_bucket");
    int offset = schema().fieldIndex("_log_offset");
    StreamSupport.stream(testCase.get("rows").spliterator(), false)
        .map(row -> new long[] {row.get(bucket).asLong(), row.get(offset).asLong()})
        .filter(row -> row[1] % 2 == 0 && row[1] >= initialOffsets.getOrDefault((int) row[0], 0L))
        .forEach(row -> expected.computeIfAbsent((int) row[0], key -> new ArrayList<>()).add(row[1]));
    expected.values().forEach(offsets -> offsets.sort(null));
    assertEquals(expected, committed);
  }

  @Test
  void eachRowIsInExactlyOneCommit() {
    LogTailReader reader = reader();
    RealTimeWriter writer = writer(Map.of());
    writer.writeAll(query(reader));
    assertTrue(chunks.size() > 2);
    assertEquals(0, storedRequests);
    check(reader, Map.of());
    int rows = chunks.stream().mapToInt(chunk -> chunk.offsets.size()).sum();
    Map<String, String> sums = MetricsCommitMessage.sum(new WriterCommitMessage[] {writer.commit(), writer.commit()});
    assertEquals(Integer.toString(2 * rows), sums.get("recordsWritten"));
    assertEquals(Integer.toString(2 * chunks.size()), sums.get("commits"));
    assertTrue(Integer.parseInt(sums.get("bytesWritten")) >= 400);
    Map<String, Long> reported = new TreeMap<>();
    for (CustomTaskMetric metric : writer.currentMetricsValues()) reported.put(metric.name(), metric.value());
    assertEquals(rows, reported.get("recordsWritten"));
    reader.close();
  }

  @Test
  void storedRowsAreSkipped() {
    LogTailReader reader = reader();
    Map<Integer, Long> initialOffsets = Map.of(0, 7L, 1, 2L);
    writer(initialOffsets).writeAll(query(reader));
    check(reader, initialOffsets);
    reader.close();
  }

  @Test
  void aRetriedTaskAsksWhatIsStored() {
    task(1);
    stored = "{\"1\": 9}";
    LogTailReader reader = reader();
    writer(Map.of(0, 7L, 1, 2L)).writeAll(query(reader));
    assertEquals(1, storedRequests);
    check(reader, Map.of(0, 7L, 1, 9L));
    reader.close();
  }

  /** The query was stopped, and its last commit came after its successor had started. */
  @Test
  void rowsThatThePredecessorStoredConcurrentlyAreSkipped() {
    conflicts = 1;
    stored = "{\"0\": 7, \"1\": 2}";
    LogTailReader reader = reader();
    writer(Map.of()).writeAll(query(reader));
    assertEquals(1, storedRequests);
    check(reader, Map.of(0, 7L, 1, 2L));
    reader.close();
  }

  @Test
  void aConflictWithoutNewlyStoredRowsIsAnError() {
    conflicts = 1;
    LogTailReader reader = reader();
    RealTimeWriter writer = writer(Map.of());
    AnalysisException refused = assertThrows(AnalysisException.class, () -> writer.writeAll(query(reader)));
    assertTrue(refused.getMessage().contains("9 is stored"), refused.getMessage());
    assertEquals(List.of(), chunks);
    reader.close();
  }

  /** They were stored by an attempt that read further than the plan of the batch. */
  @Test
  void rowsBeyondThePlanAreSkippedIfTheyAreStored() {
    LogTailReader reader = reader();
    writer(Map.of(0, 1000L, 1, 1000L)).writeAll(query(reader));
    assertEquals(List.of(), chunks);
    assertEquals(Map.of(0, 1000L, 1, 1000L), reader.getOffset().offsets);
    reader.close();
  }

  @Test
  void rowsOfAnotherTaskAreRejected() {
    RealTimeWriter writer = writer(Map.of());
    Object[] row = {0, 1L};
    AnalysisException refused =
        assertThrows(AnalysisException.class, () -> writer.write(new GenericInternalRow(row)));
    assertTrue(refused.getMessage().contains("another task"), refused.getMessage());
  }

  @Test
  void twoReadersInATaskAreRejected() {
    RealTimeWriter writer = writer(Map.of());
    LogTailReader reader = reader();
    writer.attachReader(reader);
    assertThrows(IllegalStateException.class, () -> writer.attachReader(reader));
    reader.close();
  }
}
