package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** An answer with grounds is given again while they hold, and its question costs no call of Python. */
class GroundsTest {
  private static final AtomicInteger REQUESTS = new AtomicInteger();
  private static volatile long requestMs;

  /** A store whose requests are counted, and take their time. */
  public static final class Store extends RawLocalFileSystem {
    @Override
    public FSDataInputStream open(org.apache.hadoop.fs.Path path, int bufferBytes) throws IOException {
      REQUESTS.incrementAndGet();
      LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(requestMs));
      return super.open(path, bufferBytes);
    }
  }

  /** Asks as Spark does when it runs what it has analyzed. */
  private final class V2TableRefreshUtil {
    int refreshed(String table) {
      return asked(table);
    }
  }

  @TempDir Path folder;
  private String place;
  private int calls;
  private boolean hasGrounds = true;
  private boolean isOfStore;

  private final PythonCalls python =
      new PythonCalls(new HashMap<>()) {
        @Override
        String reply(String operation, String arguments) {
          calls++;
          String grounds = hasGrounds ? "[" + (isOfStore ? ofStore() : there() + "," + absent()) + "]" : "null";
          return "{\"ok\":{\"call\":" + calls + ",\"grounds\":" + grounds + "}}";
        }

        @Override
        Configuration hadoop() {
          Configuration settings = new Configuration();
          settings.set("fs.file.impl", Store.class.getName());
          settings.setBoolean("fs.file.impl.disable.cache", true);
          return settings;
        }
      };

  private Path record() {
    return folder.resolve("1.json");
  }

  private String there() {
    try {
      Map<String, Object> facts = Files.readAttributes(record(), "unix:ino,size,lastModifiedTime");
      long modifiedNs = ((FileTime) facts.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
      String stamp = facts.get("ino") + "-" + facts.get("size") + "-" + modifiedNs;
      return "{\"path\":\"" + record() + "\",\"stamp\":\"" + stamp + "\"}";
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  private String absent() {
    return "{\"path\":\"" + folder.resolve("2.json") + "\",\"stamp\":null}";
  }

  private String ofStore() {
    String absent = "[\"commits/2.json\",\"lake/v2.metadata.json\"]";
    return "{\"path\":\"" + place + "\",\"stamp\":null,\"absent\":" + absent + ",\"file_systems\":[]}";
  }

  private int asked(String table) {
    return python.ask("load", JsonTree.object().put("table", table)).get("call").asInt();
  }

  @Test
  void theSameQuestionIsAskedOnce() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, asked("a"));
    assertEquals(1, asked("a"));
    assertEquals(2, asked("b"));
    assertEquals(1, asked("a"));
    python.forget();
    assertEquals(3, asked("a"));
  }

  @Test
  void aNewFileAsksAnew() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, asked("a"));
    Files.writeString(folder.resolve("2.json"), "b");
    assertEquals(2, asked("a"));
    assertEquals(3, asked("a"));
  }

  @Test
  void anotherFileOfTheNameAsksAnew() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, asked("a"));
    Files.writeString(folder.resolve("put back"), "a");
    Files.setLastModifiedTime(folder.resolve("put back"), Files.getLastModifiedTime(record()));
    Files.move(folder.resolve("put back"), record(), StandardCopyOption.REPLACE_EXISTING);
    assertEquals(2, asked("a"));
    assertEquals(2, asked("a"));
    Files.writeString(record(), "b c");
    assertEquals(3, asked("a"));
  }

  @Test
  void aFileThatIsGoneAsksAnew() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, asked("a"));
    Files.delete(record());
    hasGrounds = false;
    assertEquals(2, asked("a"));
  }

  @Test
  void anObjectOfAStoreThatIsThereNowAsksAnew() throws IOException {
    isOfStore = true;
    place = folder.toUri().toString();
    Files.createDirectory(folder.resolve("commits"));
    Files.createDirectory(folder.resolve("lake"));
    for (String name : new String[] {"commits/2.json", "lake/v2.metadata.json"}) {
      python.forget();
      calls = 0;
      assertEquals(1, asked("a"));
      assertEquals(1, asked("a"));
      Files.writeString(folder.resolve(name), "b");
      assertEquals(2, asked("a"));
      Files.delete(folder.resolve(name));
    }
  }

  private int analyzed(String... tables) {
    return AnalysisContext.withNewAnalysisContext(
        () -> {
          int last = 0;
          for (String table : tables) last = asked(table);
          return last;
        });
  }

  private int run(String table) {
    return new V2TableRefreshUtil().refreshed(table);
  }

  /** The requests of what is done, of which each look has two. */
  private static int requestsOf(Runnable done) {
    int before = REQUESTS.get();
    done.run();
    return REQUESTS.get() - before;
  }

  private void slowStore() throws IOException {
    isOfStore = true;
    place = folder.toUri().toString();
    Files.createDirectories(folder.resolve("commits"));
    requestMs = 60;
    analyzed("a"); // by Python
    assertEquals(2, requestsOf(() -> run("a")), "nothing is known of requests");
    assertEquals(2, requestsOf(() -> analyzed("a")));
  }

  @AfterEach
  void theStoreIsFast() {
    requestMs = 0;
  }

  @Test
  void theLookOfAnAnalysisServesItsRunOnce() throws IOException {
    slowStore();
    int found = Integer.MAX_VALUE;
    for (int i = 0; i < 20 && found > 2; i++) found = requestsOf(() -> assertEquals(analyzed("a"), run("a")));
    assertEquals(2, found);
    assertEquals(2, requestsOf(() -> run("a")));
    assertEquals(2, requestsOf(() -> run("a")));
    found = Integer.MAX_VALUE;
    analyzed("b");
    for (int i = 0; i < 20 && found > 4; i++) {
      found = requestsOf(() -> {
        analyzed("a", "b");
        run("a");
        run("b");
      });
    }
    assertEquals(4, found);
  }

  @Test
  void aRunLooksWhereACommitMayHaveComeSince() throws Exception {
    slowStore();
    analyzed("a");
    Thread.sleep(2 * requestMs);
    assertEquals(2, requestsOf(() -> run("a")));
    analyzed("a");
    assertEquals(2, requestsOf(() -> analyzed("a")), "another analysis");
    analyzed("b");
    analyzed("a");
    analyzed("b");
    assertEquals(2, requestsOf(() -> run("a")), "what was analyzed later did look meanwhile");
    analyzed("a");
    Thread other = new Thread(() -> assertEquals(2, requestsOf(() -> run("a"))));
    List<Throwable> failed = new ArrayList<>();
    other.setUncaughtExceptionHandler((thread, error) -> failed.add(error));
    other.start();
    other.join();
    assertEquals(List.of(), failed);
    analyzed("a");
    Files.writeString(folder.resolve("commits/2.json"), "b");
    Thread.sleep(2 * requestMs);
    int before = calls;
    assertEquals(before + 1, run("a"));
  }

  @Test
  void theShortestLookTellsHowFastACommitMayBe() throws Exception {
    slowStore();
    requestMs = 0;
    for (int i = 0; i < 10; i++) analyzed("a");
    requestMs = 60;
    analyzed("a");
    Thread.sleep(30);
    assertEquals(2, requestsOf(() -> run("a")));
  }

  @Test
  void aStoreThatSparkDoesNotReachIsAskedByPython() {
    isOfStore = true;
    place = "s3a-12345678-log://bucket/wh/";
    assertEquals(1, asked("a"));
    assertEquals(2, asked("a"));
  }

  @Test
  void withoutGroundsEachQuestionIsAsked() {
    hasGrounds = false;
    assertEquals(1, asked("a"));
    assertEquals(2, asked("a"));
  }

  @Test
  void whatIsKeptHasABound() {
    Kept<String> kept = new Kept<>(10);
    kept.keep("a", "x", 3);
    kept.keep("b", "y", 3);
    assertEquals("x", kept.find("a"));
    kept.keep("c", "z", 4);
    assertNull(kept.find("b"));
    assertEquals("x", kept.find("a"));
    kept.keep("d", "too large", 10);
    assertNull(kept.find("d"));
    assertEquals("z", kept.find("c"));
    kept.keep("c", "other", 1);
    assertEquals("other", kept.find("c"));
    assertEquals("x", kept.find("a"));
  }
}
