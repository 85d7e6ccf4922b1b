package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.streamhouse.spark.util.Json;
import java.lang.reflect.Field;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The names in the Java sources are exactly those of {@code protocol.json}. */
class ProtocolTest {
  /** Names that Spark defines: options of its Parquet reader, and the field that contains an answer. */
  private static final Set<String> SPARKS =
      Set.of("mergeSchema", "ignoreMissingFiles", "ignoreCorruptFiles", "datetimeRebaseMode", "int96RebaseMode",
          "parquet.page.verify-checksum.enabled");

  /** Names of file attributes. */
  private static final Set<String> OF_FILES = Set.of("ino", "size", "lastModifiedTime");

  /** An option and a property that users see as well. */
  private static final Set<String> OF_USERS = Set.of("onDifferentHistory", "status.buckets");

  private static Set<String> named(String pattern) {
    Set<String> names = new TreeSet<>();
    for (String source : Protocol.sources()) {
      Matcher matcher = Pattern.compile(pattern).matcher(source);
      while (matcher.find()) names.add(matcher.group(1));
    }
    return names;
  }

  @Test
  void options() throws IllegalAccessException {
    Map<String, String> names = new TreeMap<>();
    for (Field field : InternalOptions.class.getDeclaredFields()) names.put(field.getName(), (String) field.get(null));
    assertEquals(new TreeMap<>(Json.toMap(Protocol.NAMES.get("options"))), names);
    assertEquals(Set.of(), namedOutside("__streamhouse_\\w*", "InternalOptions"));
  }

  private static Set<String> namedOutside(String pattern, String type) {
    Set<String> names = new TreeSet<>();
    for (String source : Protocol.sources()) {
      Matcher matcher = Pattern.compile(pattern).matcher(source);
      if (!source.contains("final class " + type + " ")) while (matcher.find()) names.add(matcher.group());
    }
    return names;
  }

  @Test
  void operations() {
    Set<String> listed = new TreeSet<>();
    Protocol.NAMES.get("operations").fieldNames().forEachRemaining(listed::add);
    assertEquals(listed, named("\\.call\\(\\s*\"(\\w+)\""));
  }

  @Test
  void conditions() {
    Set<String> handled = named("\"((?:TABLE|DATABASE|VIEW|NAME)_[A-Z_]+)\"");
    assertEquals(Protocol.within(Protocol.NAMES.get("conditions")), handled);
  }

  @Test
  void changes() {
    assertEquals(Protocol.within(Protocol.NAMES.get("changes")), named("\\.put\\(\"change\", \"(\\w+)\"\\)"));
  }

  @Test
  void modesOfOptions() {
    assertEquals(Protocol.within(Protocol.NAMES.get("modes")), named("checkOptions\\(\"(\\w+)\""));
  }

  @Test
  void namesInRequests() {
    Set<String> listed = Protocol.within(Protocol.NAMES.get("given"));
    Protocol.NAMES.get("operations").fieldNames().forEachRemaining(name -> listed.addAll(Protocol.arguments(name)));
    Set<String> names = named("\\.(?:put|putArray|putObject|putNull|set)\\(\\s*\"([^\"]+)\"");
    names.removeAll(SPARKS);
    assertEquals(listed, names);
  }

  /** Java does not have to read everything that an answer contains. */
  @Test
  void namesInAnswers() {
    Set<String> listed = Protocol.within(Protocol.NAMES.get("answered"));
    Protocol.NAMES.get("operations").fieldNames().forEachRemaining(name -> listed.addAll(Protocol.answer(name)));
    listed.addAll(Protocol.within(Protocol.NAMES.get("stored")));
    listed.addAll(Protocol.within(Protocol.NAMES.get("given").get("aggregate"))); // read again when the answer arrives
    Set<String> names = named("\\.(?:get|path|has)\\(\\s*\"([^\"]+)\"");
    names.removeAll(listed);
    names.removeAll(OF_FILES);
    names.removeAll(OF_USERS);
    assertEquals(Set.of(), names);
  }
}
