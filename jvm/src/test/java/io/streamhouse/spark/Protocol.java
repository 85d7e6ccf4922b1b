package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** The names that Java and Python pass to each other: {@code protocol.json}, which Python's tests read too. */
final class Protocol {
  static final JsonNode NAMES = JsonTree.parse(text(Path.of(System.getProperty("streamhouse.protocol"))));

  private Protocol() {}

  static Set<String> arguments(String operation) {
    return new TreeSet<>(JsonTree.list(NAMES.get("operations").get(operation).get("arguments")));
  }

  static Set<String> answer(String operation) {
    return new TreeSet<>(JsonTree.list(NAMES.get("operations").get(operation).get("answer")));
  }

  /** All names in a part of the list, at any depth. */
  static Set<String> within(JsonNode part) {
    Set<String> found = new TreeSet<>();
    if (part.isTextual()) found.add(part.asText());
    part.forEach(child -> found.addAll(within(child)));
    return found;
  }

  /** The texts of the Java sources. */
  static List<String> sources() {
    List<String> found = new ArrayList<>();
    try (var paths = Files.walk(Path.of(System.getProperty("streamhouse.sources")))) {
      paths.filter(path -> path.toString().endsWith(".java")).forEach(path -> found.add(text(path)));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return found;
  }

  private static String text(Path path) {
    try {
      return Files.readString(path);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
