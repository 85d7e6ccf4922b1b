package io.streamhouse.spark.util;

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

/** Creates and parses JSON trees. */
public final class Json {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}

  public static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  public static ObjectNode object(Map<String, String> texts) {
    ObjectNode node = object();
    new TreeMap<>(texts).forEach(node::put);
    return node;
  }

  public static ArrayNode array() {
    return MAPPER.createArrayNode();
  }

  public static JsonNode parse(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("not JSON: " + text, error);
    }
  }

  public static Map<String, String> toMap(JsonNode node) {
    Map<String, String> map = new HashMap<>();
    node.properties().forEach(entry -> map.put(entry.getKey(), entry.getValue().asText()));
    return map;
  }

  public static List<String> toList(JsonNode node) {
    List<String> list = new ArrayList<>();
    node.forEach(item -> list.add(item.asText()));
    return list;
  }
}
