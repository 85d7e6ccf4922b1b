package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LocalLogStore;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.util.Xxh3;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.AnalysisException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** One thread polls a log for all tasks of a batch. */
class PollingLogTailTest {
  private static final Path GOLDEN = Path.of(System.getProperty("streamhouse.golden"));
  private static final long WAIT_MS = 20_000;

  /** A log that tests append to. It counts the requests. */
  private static final class Log implements LogStore {
    final String uuid = UUID.randomUUID().toString().replace("-", "");
    final Map<String, byte[]> files = new ConcurrentHashMap<>();
    final List<String> requests = new ArrayList<>();
    volatile boolean isUnavailable;

    @Override
    public byte[] read(String name) {
      synchronized (requests) {
        requests.add(name);
      }
      if (isUnavailable) throw SparkErrors.analysisException("STORAGE: it is away");
      return files.get(name);
    }

    @Override
    public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) {
      throw new UnsupportedOperationException();
    }

    @Override
    public String displayPath(String name) {
      return name;
    }

    /** Appends a record of this log with a header like that of the golden one. */
    void append(long number) {
      files.put(CommitRecord.fileName(number), record(number, uuid));
    }

    long requestCount(long number) {
      synchronized (requests) {
        return requests.stream().filter(CommitRecord.fileName(number)::equals).count();
      }
    }

    int requestCount() {
      synchronized (requests) {
        return requests.size();
      }
    }
  }

  private static byte[] record(long number, String uuid) {
    String padding = "x".repeat(300);
    String header =
        "{\"number\":" + number + ",\"table\":\"" + uuid + "\",\"attempt\":\"a" + number + "\",\"padding\":\"" + padding
            + "\",\"actions\":[]}\n";
    byte[] bytes = header.getBytes(StandardCharsets.UTF_8);
    String sum = Xxh3.hex128(bytes, 0, bytes.length);
    String first = "{\"streamhouse\":\"commit\",\"version\":1,\"xxh3\":\"" + sum + "\"}\n";
    return (first + header).getBytes(StandardCharsets.UTF_8);
  }

  private final Log log = new Log();
  private final List<LogTail> open = new ArrayList<>();

  private LogTail tail(String batch, long next) {
    LogTail tail = PollingLogTail.of(batch, log, log.uuid, next);
    open.add(tail);
    return tail;
  }

  @BeforeEach
  void someRecords() {
    for (int number = 5; number < 9; number++) log.append(number);
  }

  @AfterEach
  void close() {
    open.forEach(LogTail::close);
  }

  private static void waitFor(LogTail tail, long number) throws IOException {
    long end = System.currentTimeMillis() + WAIT_MS;
    while (!tail.hasRecord(number)) {
      assertTrue(System.currentTimeMillis() < end, "record " + number);
      tail.awaitRecord();
    }
  }

  @Test
  void theTasksOfABatchShareRequests() throws IOException {
    LogTail first = tail("one", 5);
    LogTail second = tail("one", 5);
    for (long number = 5; number < 9; number++) {
      waitFor(first, number);
      assertEquals("a" + number, first.getRecord(number).attempt());
    }
    for (long number = 5; number < 9; number++) {
      assertTrue(second.hasRecord(number));
      assertEquals("a" + number, second.getRecord(number).attempt());
      assertEquals(1, log.requestCount(number));
    }
    assertFalse(first.hasRecord(9));
    log.append(9);
    waitFor(second, 9);
    assertEquals("a9", first.getRecord(9).attempt());
  }

  @Test
  void batchesDoNotShareRecords() throws IOException {
    waitFor(tail("one", 5), 8);
    waitFor(tail("two", 5), 8);
    assertEquals(2, log.requestCount(8));
  }

  @Test
  void aReaderThatIsFarBehindReadsForItself() throws IOException {
    LogTail fast = tail("one", 5);
    LogTail slow = tail("one", 5);
    for (long number = 9; number < 100; number++) log.append(number);
    for (long number = 5; number < 100; number++) waitFor(fast, number);
    assertEquals("a5", slow.getRecord(5).attempt());
    assertEquals(2, log.requestCount(5));
    assertEquals("a99", slow.getRecord(99).attempt());
    assertEquals(1, log.requestCount(99));
  }

  @Test
  void someRecordsArePrefetched() throws IOException, InterruptedException {
    for (long number = 9; number < 100; number++) log.append(number);
    LogTail tail = tail("one", 5);
    waitFor(tail, 5);
    Thread.sleep(200);
    int asks = log.requestCount();
    assertTrue(asks < 30, asks + " requests");
    Thread.sleep(100);
    assertEquals(asks, log.requestCount());
    waitFor(tail, 99);
  }

  @Test
  void pollsGetRarerWhileNoRecordArrives() {
    assertEquals(20_000_000, PollingLogTail.pollIntervalNs(0));
    assertEquals(20_000_000, PollingLogTail.pollIntervalNs(320_000_000));
    assertEquals(1_000_000_000, PollingLogTail.pollIntervalNs(16_000_000_000L));
    assertEquals(2_000_000_000, PollingLogTail.pollIntervalNs(3_600_000_000_000L));
  }

  @Test
  void anIdleLogIsPolledFiftyTimesASecondAtMost() throws IOException, InterruptedException {
    LogTail tail = tail("one", 9);
    long beginNs = System.nanoTime();
    while (System.nanoTime() - beginNs < 400_000_000) {
      assertFalse(tail.hasRecord(9));
      tail.awaitRecord();
    }
    assertTrue(log.requestCount() <= 2 + (System.nanoTime() - beginNs) / 20_000_000, log.requestCount() + " requests");
    assertTrue(log.requestCount() >= 3, log.requestCount() + " requests");
    tail.close();
    open.clear();
    Thread.sleep(50);
    int asks = log.requestCount();
    Thread.sleep(100);
    assertEquals(asks, log.requestCount(), "nobody reads any more");
  }

  @Test
  void anUnreadableRecordEndsTheTail() throws IOException, InterruptedException {
    byte[] damaged = record(9, log.uuid);
    damaged[200] ^= 1;
    log.files.put(CommitRecord.fileName(9), damaged);
    log.append(10);
    LogTail tail = tail("one", 8);
    waitFor(tail, 9);
    assertEquals("a8", tail.getRecord(8).attempt());
    assertNull(tail.getRecord(9));
    Thread.sleep(50);
    assertEquals(0, log.requestCount(10));
  }

  @Test
  void eachReaderGetsTheErrorOfTheStore() throws IOException {
    LogTail first = tail("one", 5);
    LogTail second = tail("one", 5);
    waitFor(first, 8);
    log.isUnavailable = true;
    for (LogTail tail : List.of(first, second)) {
      assertTrue(tail.hasRecord(8), "a record that was read counts");
      Exception error = assertThrows(AnalysisException.class, () -> waitFor(tail, 9));
      assertTrue(error.getMessage().startsWith("STORAGE: it is away"), error.getMessage());
    }
  }

  @Test
  void recordsThatPythonWroteAreRead() throws IOException {
    JsonNode testCase = Json.parse(Files.readString(GOLDEN.resolve("follow").resolve("cases.json"))).get(0);
    Path folder =
        GOLDEN.resolve(testCase.get("warehouse").asText()).resolve(testCase.get("task").get("folder").asText());
    String uuid = testCase.get("task").get("uuid").asText();
    long next = testCase.get("task").get("next").asLong();
    LogTail tail = PollingLogTail.of("golden", new LocalLogStore(folder), uuid, next);
    open.add(tail);
    for (long number = next; number <= testCase.get("last").asLong(); number++) {
      waitFor(tail, number);
      assertEquals(number, tail.getRecord(number).number);
    }
  }
}
