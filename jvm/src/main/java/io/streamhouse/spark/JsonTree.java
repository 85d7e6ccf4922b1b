package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** Trees of JSON, and plain texts in them. */
final class JsonTree {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private JsonTree() {}

  static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  static ObjectNode object(Map<String, String> texts) {
    ObjectNode node = object();
    new TreeMap<>(texts).forEach(node::put);
    return node;
  }

  static ArrayNode array() {
    return MAPPER.createArrayNode();
  }

  static JsonNode parse(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("not JSON: " + text, error);
    }
  }

  static Map<String, String> texts(JsonNode node) {
    Map<String, String> found = new HashMap<>();
    node.properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    return found;
  }

  static List<String> list(JsonNode node) {
    List<String> found = new ArrayList<>();
    node.forEach(item -> found.add(item.asText()));
    return found;
  }
}
