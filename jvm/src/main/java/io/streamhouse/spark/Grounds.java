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

/** The files that an answer rests on. Python chooses them; here is only looked whether they are as they were. */
final class Grounds {
  /**
   * Beyond this age Python is asked in any case. It looks from time to time at more than the files that change with
   * each commit, so that a log that was restored from a backup is noticed.
   */
  private static final long AGE_MAX_NS = TimeUnit.SECONDS.toNanos(30);

  private final List<Ground> grounds = new ArrayList<>();
  private final long sinceNs;

  private static final class Ground {
    final String path;
    final String stamp;

    Ground(String path, String stamp) {
      this.path = path;
      this.stamp = stamp;
    }
  }

  /** Takes a moment before the question was asked, of {@link System#nanoTime}. */
  private Grounds(JsonNode given, long sinceNs) {
    this.sinceNs = sinceNs;
    for (JsonNode ground : given) {
      grounds.add(new Ground(ground.get("path").asText(), ground.get("stamp").textValue()));
    }
  }

  /** Gives null for an answer without grounds, which holds for its question alone. */
  static Grounds of(JsonNode answer, long sinceNs) {
    JsonNode given = answer.path("grounds");
    return given.isArray() ? new Grounds(given, sinceNs) : null;
  }

  /** Whether the answer still is what Python would say. */
  boolean hold() {
    if (System.nanoTime() - sinceNs > AGE_MAX_NS) return false;
    for (Ground ground : grounds) {
      if (!holds(ground)) return false;
    }
    return true;
  }

  private static boolean holds(Ground ground) {
    try {
      Path path = Path.of(ground.path);
      if (ground.stamp == null) return Files.notExists(path, LinkOption.NOFOLLOW_LINKS);
      Map<String, Object> facts = Files.readAttributes(path, "unix:ino,size,lastModifiedTime");
      long modifiedNs = ((FileTime) facts.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
      return ground.stamp.equals(facts.get("ino") + "-" + facts.get("size") + "-" + modifiedNs);
    } catch (IOException | IllegalArgumentException | UnsupportedOperationException cannotBeTold) {
      return false;
    }
  }
}
