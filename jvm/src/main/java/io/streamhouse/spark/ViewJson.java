package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A view as JSON. */
final class ViewJson {
  private ViewJson() {}

  static ObjectNode of(View view) {
    ObjectNode described = JsonTree.object();
    described.put("text", view.queryText()).put("schema", view.schema().json());
    described.put("catalog", view.currentCatalog()).put("schema_mode", view.schemaMode());
    described.set("namespace", texts(view.currentNamespace()));
    described.set("query_columns", texts(view.queryColumnNames()));
    described.set("configs", JsonTree.object(view.sqlConfigs()));
    described.set("properties", JsonTree.object(view.properties()));
    return described;
  }

  static View view(JsonNode described) {
    return new View.Builder()
        .withQueryText(described.get("text").asText())
        .withSchema((StructType) DataType.fromJson(described.get("schema").asText()))
        .withCurrentCatalog(described.get("catalog").textValue())
        .withCurrentNamespace(array(described.get("namespace")))
        .withQueryColumnNames(array(described.get("query_columns")))
        .withSchemaMode(described.get("schema_mode").textValue())
        .withSqlConfigs(JsonTree.texts(described.get("configs")))
        .withProperties(JsonTree.texts(described.get("properties")))
        .build();
  }

  private static ArrayNode texts(String[] texts) {
    ArrayNode array = JsonTree.array();
    if (texts != null) for (String text : texts) array.add(text);
    return array;
  }

  private static String[] array(JsonNode node) {
    return JsonTree.list(node).toArray(new String[0]);
  }
}
