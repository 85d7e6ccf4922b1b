package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Calls of Python, with the settings of one catalog.
 *
 * <p>A call is the schema inference of the data source {@code streamhouse} with two options, an operation and its
 * arguments as JSON. The answer is JSON in the metadata of the one field of the schema that comes back. It runs in
 * Spark's planner worker, which is reused, and costs about 20 ms.
 */
class PythonCalls {
  static final String SOURCE = "streamhouse";

  private final Map<String, String> settings;

  PythonCalls(Map<String, String> settings) {
    this.settings = new HashMap<>(settings);
  }

  /** The package's own data source. */
  PythonDataSourceV2 source() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(SOURCE);
    return source;
  }

  /** Settings of the catalog, with those of a query or a call. The caller may change the map. */
  Map<String, String> options(Map<String, String> more) {
    Map<String, String> all = new HashMap<>(settings);
    all.putAll(more);
    return all;
  }

  /** The options of a call. */
  static Map<String, String> call(String operation, String arguments) {
    return Map.of(InternalOptions.CALL, operation, InternalOptions.ARGUMENTS, arguments);
  }

  /**
   * Python's answer. An error is an AnalysisException with Python's text. The conditions that the caller handles are
   * thrown as {@link Refused}.
   */
  JsonNode ask(String operation, ObjectNode arguments, String... handled) {
    CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(options(call(operation, arguments.toString())));
    return answer(source().inferSchema(all).fields()[0].metadata().getString("json"), handled);
  }

  /** The answer in a reply. */
  static JsonNode answer(String text, String... handled) {
    JsonNode reply = JsonTree.parse(text);
    if (!reply.has("error")) return reply.get("ok");
    String condition = reply.get("error").get("condition").asText();
    String message = reply.get("error").get("message").asText();
    if (Arrays.asList(handled).contains(condition)) throw new Refused(condition, message);
    throw Errors.analysis(message);
  }
}
