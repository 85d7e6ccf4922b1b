package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;

/** The names that Java and Python pass to each other, from {@code protocol.json}, which Python's tests read as well. */
public final class Protocol {
  public static final JsonNode NAMES = Json.parse(text(Path.of(System.getProperty("streamhouse.protocol"))));

  private Protocol() {}

  public static Set<String> arguments(String operation) {
    return new TreeSet<>(Json.toList(NAMES.get("operations").get(operation).get("arguments")));
  }

  static Set<String> answer(String operation) {
    return new TreeSet<>(Json.toList(NAMES.get("operations").get(operation).get("answer")));
  }

  /** Returns all names in a part of the protocol, at any depth. */
  static Set<String> within(JsonNode part) {
    Set<String> names = new TreeSet<>();
    if (part.isTextual()) names.add(part.asText());
    part.forEach(child -> names.addAll(within(child)));
    return names;
  }

  /** Returns the Java sources without those of change events, whose names belong to other systems. */
  static List<String> sources() {
    List<String> texts = new ArrayList<>();
    try (var paths = Files.walk(Path.of(System.getProperty("streamhouse.sources")))) {
      paths.filter(path -> path.toString().matches("(?!.*/cdc/).*\\.java")).forEach(path -> texts.add(text(path)));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return texts;
  }

  private static String text(Path path) {
    try {
      return Files.readString(path);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
