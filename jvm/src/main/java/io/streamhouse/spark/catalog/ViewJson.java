package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** Encodes views as JSON and decodes them. */
public final class ViewJson {
  private ViewJson() {}

  public static ObjectNode of(View view) {
    ObjectNode json = Json.object();
    json.put("text", view.queryText()).put("schema", view.schema().json());
    json.put("catalog", view.currentCatalog()).put("schema_mode", view.schemaMode());
    json.set("namespace", toArray(view.currentNamespace()));
    json.set("query_columns", toArray(view.queryColumnNames()));
    json.set("configs", Json.object(view.sqlConfigs()));
    json.set("properties", Json.object(view.properties()));
    return json;
  }

  public static View toView(JsonNode json) {
    return new View.Builder()
        .withQueryText(json.get("text").asText())
        .withSchema((StructType) DataType.fromJson(json.get("schema").asText()))
        .withCurrentCatalog(json.get("catalog").textValue())
        .withCurrentNamespace(toStrings(json.get("namespace")))
        .withQueryColumnNames(toStrings(json.get("query_columns")))
        .withSchemaMode(json.get("schema_mode").textValue())
        .withSqlConfigs(Json.toMap(json.get("configs")))
        .withProperties(Json.toMap(json.get("properties")))
        .build();
  }

  private static ArrayNode toArray(String[] texts) {
    ArrayNode array = Json.array();
    if (texts != null) for (String text : texts) array.add(text);
    return array;
  }

  private static String[] toStrings(JsonNode node) {
    return Json.toList(node).toArray(new String[0]);
  }
}
