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
 * A cached answer of Python and the validators that tell whether it is still current, as an ETag does. Python chooses
 * them: files that must be unchanged, or on an object store, keys that must not exist yet, which are requested
 * concurrently.
 */
final class CacheValidators {
  /**
   * After this time Python is called in any case. It sometimes checks more than the files that each commit changes, and
   * so notices a log that was restored from a backup.
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
   * Returns the validators of an answer, or null if it has none and must not be cached. {@code sinceNs} is the {@link
   * System#nanoTime} before the call.
   */
  static CacheValidators of(JsonNode answer, long sinceNs) {
    JsonNode validators = answer.path("validators");
    return validators.isArray() ? new CacheValidators(answer, validators, sinceNs) : null;
  }

  /** Returns whether Python would still give the same answer. */
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
