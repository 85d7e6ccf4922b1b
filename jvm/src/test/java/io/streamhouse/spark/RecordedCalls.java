package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Calls that are answered from a list. Each is checked against the protocol. */
final class RecordedCalls extends PythonCalls {
  private final Map<String, String> replies = new HashMap<>();

  /** Of each operation, the names of all arguments that it was given. */
  final Map<String, Set<String>> given = new TreeMap<>();

  /** Of each operation, the arguments that it was given last. */
  final Map<String, ObjectNode> lastOf = new HashMap<>();

  ObjectNode last;

  RecordedCalls() {
    super(Map.of());
  }

  RecordedCalls answer(String operation, String answer) {
    Set<String> names = new TreeSet<>();
    JsonTree.parse(answer).fieldNames().forEachRemaining(names::add);
    assertEquals(Protocol.answer(operation), names, "answer to " + operation);
    replies.put(operation, "{\"ok\":" + answer + "}");
    return this;
  }

  RecordedCalls refuse(String operation, String condition) {
    String error = "{\"class\":\"X\",\"condition\":\"" + condition + "\",\"message\":\"" + condition + ": no\"}";
    replies.put(operation, "{\"error\":" + error + "}");
    return this;
  }

  @Override
  JsonNode ask(String operation, ObjectNode arguments, String... handled) {
    assertTrue(Protocol.NAMES.get("operations").has(operation), operation);
    last = arguments;
    lastOf.put(operation, arguments);
    Set<String> names = given.computeIfAbsent(operation, name -> new TreeSet<>());
    arguments.fieldNames().forEachRemaining(names::add);
    assertTrue(Protocol.arguments(operation).containsAll(names), operation + ": " + names);
    return PythonCalls.answer(replies.getOrDefault(operation, "{\"ok\":{}}"), handled);
  }
}
