package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;

/**
 * An answer and the files that it rests on. Python chooses them; here is only looked whether they are as they were.
 * Of a store that is no disk these are objects that have to be absent, which are asked for at the same time.
 */
final class Grounds {
  /**
   * Beyond this age Python is asked in any case. It looks from time to time at more than the files that change with
   * each commit, so that a log that was restored from a backup is noticed.
   */
  private static final long AGE_MAX_NS = TimeUnit.SECONDS.toNanos(30);

  final JsonNode answer;
  private final JsonNode grounds;
  private final long sinceNs;
  private StoreLogFiles store;

  private Grounds(JsonNode answer, JsonNode grounds, long sinceNs) {
    this.answer = answer;
    this.grounds = grounds;
    this.sinceNs = sinceNs;
  }

  /**
   * Takes a moment before the question was asked, of {@link System#nanoTime}. Gives null for an answer without grounds,
   * which holds for its question alone.
   */
  static Grounds of(JsonNode answer, long sinceNs) {
    JsonNode given = answer.path("grounds");
    return given.isArray() ? new Grounds(answer, given, sinceNs) : null;
  }

  /** Whether the answer still is what Python would say. */
  boolean hold(PythonCalls python) {
    if (System.nanoTime() - sinceNs > AGE_MAX_NS) return false;
    for (JsonNode ground : grounds) {
      if (!(ground.has("absent") ? areAbsent(ground, python) : holds(ground))) return false;
    }
    return true;
  }

  private synchronized boolean areAbsent(JsonNode ground, PythonCalls python) {
    try {
      if (store == null) {
        Configuration session = python.hadoop();
        Configuration settings = new Configuration(session);
        FileSystems.configure(ground.get("file_systems"), python, session, settings::set);
        store = StoreLogFiles.of(ground.get("path").asText(), settings, 0);
      }
      List<LogFiles.Read<byte[]>> reads = new ArrayList<>();
      for (JsonNode key : ground.get("absent")) reads.add(store.begin(() -> store.read(key.asText())));
      for (LogFiles.Read<byte[]> read : reads) if (read.get() != null) return false;
      return true;
    } catch (Exception | LinkageError cannotBeTold) {
      return false;
    }
  }

  private static boolean holds(JsonNode ground) {
    try {
      Path path = Path.of(ground.get("path").asText());
      String stamp = ground.get("stamp").textValue();
      if (stamp == null) return Files.notExists(path, LinkOption.NOFOLLOW_LINKS);
      Map<String, Object> facts = Files.readAttributes(path, "unix:ino,size,lastModifiedTime");
      long modifiedNs = ((FileTime) facts.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
      return stamp.equals(facts.get("ino") + "-" + facts.get("size") + "-" + modifiedNs);
    } catch (IOException | IllegalArgumentException | UnsupportedOperationException cannotBeTold) {
      return false;
    }
  }
}
