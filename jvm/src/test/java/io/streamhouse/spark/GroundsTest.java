package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.attribute.FileTime;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** An answer with grounds is given again while they hold, and its question costs no call of Python. */
class GroundsTest {
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
          return new Configuration();
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
