package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Answers calls from a list and checks each against the protocol. */
public final class RecordingRpc extends PythonRpc {
  private final Map<String, String> replies = new HashMap<>();

  /** The names of all arguments that each operation received. */
  public final Map<String, Set<String>> argumentNames = new TreeMap<>();

  /** The arguments of the last call of each operation. */
  public final Map<String, ObjectNode> lastByOperation = new HashMap<>();

  public ObjectNode last;

  public RecordingRpc() {
    super(Map.of());
  }

  public RecordingRpc answer(String operation, String answer) {
    Set<String> names = new TreeSet<>();
    Json.parse(answer).fieldNames().forEachRemaining(names::add);
    assertEquals(Protocol.answer(operation), names, "answer to " + operation);
    replies.put(operation, "{\"ok\":" + answer + "}");
    return this;
  }

  public RecordingRpc refuse(String operation, String condition) {
    String error = "{\"class\":\"X\",\"condition\":\"" + condition + "\",\"message\":\"" + condition + ": no\"}";
    replies.put(operation, "{\"error\":" + error + "}");
    return this;
  }

  @Override
  public JsonNode call(String operation, ObjectNode arguments, String... handled) {
    assertTrue(Protocol.NAMES.get("operations").has(operation), operation);
    last = arguments;
    lastByOperation.put(operation, arguments);
    Set<String> names = argumentNames.computeIfAbsent(operation, name -> new TreeSet<>());
    arguments.fieldNames().forEachRemaining(names::add);
    assertTrue(Protocol.arguments(operation).containsAll(names), operation + ": " + names);
    return PythonRpc.parseReply(replies.getOrDefault(operation, "{\"ok\":{}}"), handled);
  }
}
