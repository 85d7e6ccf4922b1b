package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
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

/** One thread looks for the records of a log on behalf of all tasks of a batch. */
class PolledLogTailTest {
  private static final Path GOLDEN = Path.of(System.getProperty("streamhouse.golden"));
  private static final long WAIT_MS = 20_000;

  /** A log that grows as it is told, and counts what is asked of it. */
  private static final class Log implements LogFiles {
    final String uuid = UUID.randomUUID().toString().replace("-", "");
    final Map<String, byte[]> there = new ConcurrentHashMap<>();
    final List<String> asked = new ArrayList<>();
    volatile boolean isAway;

    @Override
    public byte[] read(String name) {
      synchronized (asked) {
        asked.add(name);
      }
      if (isAway) throw Errors.analysis("STORAGE: it is away");
      return there.get(name);
    }

    @Override
    public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) {
      throw new UnsupportedOperationException();
    }

    @Override
    public String place(String name) {
      return name;
    }

    /** Appends a record of this log's own, with a header as the golden one has it. */
    void append(long number) {
      there.put(CommitRecord.name(number), record(number, uuid));
    }

    long asks(long number) {
      synchronized (asked) {
        return asked.stream().filter(CommitRecord.name(number)::equals).count();
      }
    }

    int asks() {
      synchronized (asked) {
        return asked.size();
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
    LogTail made = PolledLogTail.of(batch, log, log.uuid, next);
    open.add(made);
    return made;
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
    while (!tail.has(number)) {
      assertTrue(System.currentTimeMillis() < end, "record " + number);
      tail.await();
    }
  }

  @Test
  void theTasksOfABatchShareItsRequests() throws IOException {
    LogTail first = tail("one", 5);
    LogTail second = tail("one", 5);
    for (long number = 5; number < 9; number++) {
      waitFor(first, number);
      assertEquals("a" + number, first.get(number).attempt());
    }
    for (long number = 5; number < 9; number++) {
      assertTrue(second.has(number));
      assertEquals("a" + number, second.get(number).attempt());
      assertEquals(1, log.asks(number));
    }
    assertFalse(first.has(9));
    log.append(9);
    waitFor(second, 9);
    assertEquals("a9", first.get(9).attempt());
  }

  @Test
  void anotherBatchReadsAnew() throws IOException {
    waitFor(tail("one", 5), 8);
    waitFor(tail("two", 5), 8);
    assertEquals(2, log.asks(8));
  }

  @Test
  void aReaderThatIsFarBehindReadsForItself() throws IOException {
    LogTail fast = tail("one", 5);
    LogTail slow = tail("one", 5);
    for (long number = 9; number < 100; number++) log.append(number);
    for (long number = 5; number < 100; number++) waitFor(fast, number);
    assertEquals("a5", slow.get(5).attempt());
    assertEquals(2, log.asks(5));
    assertEquals("a99", slow.get(99).attempt());
    assertEquals(1, log.asks(99));
  }

  @Test
  void recordsAreReadSomeAheadOfTheReaders() throws IOException, InterruptedException {
    for (long number = 9; number < 100; number++) log.append(number);
    LogTail tail = tail("one", 5);
    waitFor(tail, 5);
    Thread.sleep(200);
    int asks = log.asks();
    assertTrue(asks < 30, asks + " requests");
    Thread.sleep(100);
    assertEquals(asks, log.asks());
    waitFor(tail, 99);
  }

  @Test
  void looksAreFewerTheLongerNothingCame() {
    assertEquals(20_000_000, PolledLogTail.intervalNs(0));
    assertEquals(20_000_000, PolledLogTail.intervalNs(320_000_000));
    assertEquals(1_000_000_000, PolledLogTail.intervalNs(16_000_000_000L));
    assertEquals(2_000_000_000, PolledLogTail.intervalNs(3_600_000_000_000L));
  }

  @Test
  void anIdleLogIsAskedFiftyTimesASecondAtMost() throws IOException, InterruptedException {
    LogTail tail = tail("one", 9);
    long beginNs = System.nanoTime();
    while (System.nanoTime() - beginNs < 400_000_000) {
      assertFalse(tail.has(9));
      tail.await();
    }
    assertTrue(log.asks() <= 2 + (System.nanoTime() - beginNs) / 20_000_000, log.asks() + " requests");
    assertTrue(log.asks() >= 3, log.asks() + " requests");
    tail.close();
    open.clear();
    Thread.sleep(50);
    int asks = log.asks();
    Thread.sleep(100);
    assertEquals(asks, log.asks(), "nobody reads any more");
  }

  @Test
  void aRecordThatCannotBeReadIsTheLastOne() throws IOException, InterruptedException {
    byte[] damaged = record(9, log.uuid);
    damaged[200] ^= 1;
    log.there.put(CommitRecord.name(9), damaged);
    log.append(10);
    LogTail tail = tail("one", 8);
    waitFor(tail, 9);
    assertEquals("a8", tail.get(8).attempt());
    assertNull(tail.get(9));
    Thread.sleep(50);
    assertEquals(0, log.asks(10));
  }

  @Test
  void eachReaderIsToldThatTheStoreIsAway() throws IOException {
    LogTail first = tail("one", 5);
    LogTail second = tail("one", 5);
    waitFor(first, 8);
    log.isAway = true;
    for (LogTail each : List.of(first, second)) {
      assertTrue(each.has(8), "a record that was read counts");
      Exception error = assertThrows(AnalysisException.class, () -> waitFor(each, 9));
      assertTrue(error.getMessage().startsWith("STORAGE: it is away"), error.getMessage());
    }
  }

  @Test
  void theRecordsOfPythonAreReadAsTheyAre() throws IOException {
    JsonNode one = JsonTree.parse(Files.readString(GOLDEN.resolve("follow").resolve("cases.json"))).get(0);
    Path folder = GOLDEN.resolve(one.get("warehouse").asText()).resolve(one.get("task").get("folder").asText());
    String uuid = one.get("task").get("uuid").asText();
    long next = one.get("task").get("next").asLong();
    LogTail tail = PolledLogTail.of("golden", new LocalLogFiles(folder), uuid, next);
    open.add(tail);
    for (long number = next; number <= one.get("last").asLong(); number++) {
      waitFor(tail, number);
      assertEquals(number, tail.get(number).number);
    }
  }
}
