package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.types.DataType;

/** A metadata column of a table, as Python describes it. */
final class TableMetadataColumn implements MetadataColumn {
  private final JsonNode definition;

  TableMetadataColumn(JsonNode definition) {
    this.definition = definition;
  }

  @Override
  public String name() {
    return definition.get("name").asText();
  }

  @Override
  public DataType dataType() {
    return DataType.fromJson(definition.get("type").asText());
  }

  @Override
  public boolean isNullable() {
    return definition.get("nullable").asBoolean();
  }

  @Override
  public String comment() {
    return definition.path("comment").asText("");
  }
}
