package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.storage.RemoteLogStore;
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
final class CacheValidators {
  /**
   * Beyond this age Python is asked in any case. It looks from time to time at more than the files that change with
   * each commit, so that a log that was restored from a backup is noticed.
   */
  private static final long AGE_MAX_NS = TimeUnit.SECONDS.toNanos(30);

  final JsonNode answer;
  private final JsonNode validators;
  private final long sinceNs;
  private RemoteLogStore store;

  private CacheValidators(JsonNode answer, JsonNode validators, long sinceNs) {
    this.answer = answer;
    this.validators = validators;
    this.sinceNs = sinceNs;
  }

  /**
   * Takes a moment before the question was asked, of {@link System#nanoTime}. Gives null for an answer without grounds,
   * which holds for its question alone.
   */
  static CacheValidators of(JsonNode answer, long sinceNs) {
    JsonNode validators = answer.path("grounds");
    return validators.isArray() ? new CacheValidators(answer, validators, sinceNs) : null;
  }

  /** Whether the answer still is what Python would say. */
  boolean areValid(PythonRpc python) {
    if (System.nanoTime() - sinceNs > AGE_MAX_NS) return false;
    for (JsonNode validator : validators) {
      if (!(validator.has("absent") ? areAbsent(validator, python) : matchesStamp(validator))) return false;
    }
    return true;
  }

  private synchronized boolean areAbsent(JsonNode validator, PythonRpc python) {
    try {
      if (store == null) {
        Configuration session = python.hadoopConfiguration();
        Configuration settings = new Configuration(session);
        HadoopFileSystems.configure(validator.get("file_systems"), python, session, settings::set);
        store = RemoteLogStore.of(validator.get("path").asText(), settings, 0);
      }
      List<LogStore.Read<byte[]>> reads = new ArrayList<>();
      for (JsonNode key : validator.get("absent")) reads.add(store.prefetch(() -> store.read(key.asText())));
      for (LogStore.Read<byte[]> read : reads) if (read.get() != null) return false;
      return true;
    } catch (Exception | LinkageError error) {
      return false;
    }
  }

  private static boolean matchesStamp(JsonNode validator) {
    try {
      Path path = Path.of(validator.get("path").asText());
      String stamp = validator.get("stamp").textValue();
      if (stamp == null) return Files.notExists(path, LinkOption.NOFOLLOW_LINKS);
      Map<String, Object> facts = Files.readAttributes(path, "unix:ino,size,lastModifiedTime");
      long modifiedNs = ((FileTime) facts.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
      return stamp.equals(facts.get("ino") + "-" + facts.get("size") + "-" + modifiedNs);
    } catch (IOException | IllegalArgumentException | UnsupportedOperationException error) {
      return false;
    }
  }
}
