package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.types.DataType;

/** A metadata column, as Python describes it. */
final class HiddenColumn implements MetadataColumn {
  private final JsonNode described;

  HiddenColumn(JsonNode described) {
    this.described = described;
  }

  @Override
  public String name() {
    return described.get("name").asText();
  }

  @Override
  public DataType dataType() {
    return DataType.fromJson(described.get("type").asText());
  }

  @Override
  public boolean isNullable() {
    return described.get("nullable").asBoolean();
  }

  @Override
  public String comment() {
    return described.path("comment").asText("");
  }
}
