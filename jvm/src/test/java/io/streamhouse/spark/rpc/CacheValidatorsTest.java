package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.WeightedLruCache;
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

/** An answer is served from the cache while its validators are valid, without a call of Python. */
class CacheValidatorsTest {
  @TempDir Path folder;
  private String place;
  private int calls;
  private boolean hasValidators = true;
  private boolean isOfStore;

  private final PythonRpc python =
      new PythonRpc(new HashMap<>()) {
        @Override
        String invoke(String operation, String arguments) {
          calls++;
          String validators = hasValidators ? "[" + (isOfStore ? ofStore() : there() + "," + absent()) + "]" : "null";
          return "{\"ok\":{\"call\":" + calls + ",\"validators\":" + validators + "}}";
        }

        @Override
        Configuration hadoopConfiguration() {
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

  private int call(String table) {
    return python.call("load", Json.object().put("table", table)).get("call").asInt();
  }

  @Test
  void aRepeatedCallIsServedFromTheCache() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, call("a"));
    assertEquals(1, call("a"));
    assertEquals(2, call("b"));
    assertEquals(1, call("a"));
    python.invalidate();
    assertEquals(3, call("a"));
  }

  @Test
  void aNewFileInvalidatesTheAnswer() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, call("a"));
    Files.writeString(folder.resolve("2.json"), "b");
    assertEquals(2, call("a"));
    assertEquals(3, call("a"));
  }

  @Test
  void aReplacedFileInvalidatesTheAnswer() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, call("a"));
    Files.writeString(folder.resolve("put back"), "a");
    Files.setLastModifiedTime(folder.resolve("put back"), Files.getLastModifiedTime(record()));
    Files.move(folder.resolve("put back"), record(), StandardCopyOption.REPLACE_EXISTING);
    assertEquals(2, call("a"));
    assertEquals(2, call("a"));
    Files.writeString(record(), "b c");
    assertEquals(3, call("a"));
  }

  @Test
  void aDeletedFileInvalidatesTheAnswer() throws IOException {
    Files.writeString(record(), "a");
    assertEquals(1, call("a"));
    Files.delete(record());
    hasValidators = false;
    assertEquals(2, call("a"));
  }

  @Test
  void aNewObjectInvalidatesTheAnswer() throws IOException {
    isOfStore = true;
    place = folder.toUri().toString();
    Files.createDirectory(folder.resolve("commits"));
    Files.createDirectory(folder.resolve("lake"));
    for (String name : new String[] {"commits/2.json", "lake/v2.metadata.json"}) {
      python.invalidate();
      calls = 0;
      assertEquals(1, call("a"));
      assertEquals(1, call("a"));
      Files.writeString(folder.resolve(name), "b");
      assertEquals(2, call("a"));
      Files.delete(folder.resolve(name));
    }
  }

  @Test
  void anUnreachableStoreInvalidatesTheAnswer() {
    isOfStore = true;
    place = "s3a-12345678-log://bucket/wh/";
    assertEquals(1, call("a"));
    assertEquals(2, call("a"));
  }

  @Test
  void answersWithoutValidatorsAreNotCached() {
    hasValidators = false;
    assertEquals(1, call("a"));
    assertEquals(2, call("a"));
  }

  @Test
  void theCacheIsBounded() {
    WeightedLruCache<String> cache = new WeightedLruCache<>(10);
    cache.put("a", "x", 3);
    cache.put("b", "y", 3);
    assertEquals("x", cache.get("a"));
    cache.put("c", "z", 4);
    assertNull(cache.get("b"));
    assertEquals("x", cache.get("a"));
    cache.put("d", "too large", 10);
    assertNull(cache.get("d"));
    assertEquals("z", cache.get("c"));
    cache.put("c", "other", 1);
    assertEquals("other", cache.get("c"));
    assertEquals("x", cache.get("a"));
  }
}
