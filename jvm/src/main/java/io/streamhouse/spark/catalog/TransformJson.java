package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LogicalExpressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;

/** Encodes partition transforms as JSON and decodes them. */
final class TransformJson {
  private TransformJson() {}

  static ObjectNode of(Transform transform) {
    ObjectNode node = Json.object().put("transform", transform.name());
    ArrayNode columns = node.putArray("columns");
    ArrayNode arguments = node.putArray("arguments");
    for (Expression argument : transform.arguments()) {
      if (argument instanceof NamedReference) {
        ArrayNode path = columns.addArray();
        for (String part : ((NamedReference) argument).fieldNames()) path.add(part);
      } else if (argument instanceof Literal) {
        arguments.addPOJO(((Literal<?>) argument).value());
      } else {
        arguments.add(argument.toString());
      }
    }
    return node;
  }

  static Transform of(JsonNode node) {
    List<Expression> arguments = new ArrayList<>();
    for (JsonNode argument : node.get("arguments")) arguments.add(Expressions.literal(argument.asInt()));
    for (JsonNode column : node.get("columns")) arguments.add(FieldReference.column(column.get(0).asText()));
    return apply(node.get("transform").asText(), arguments.toArray(new Expression[0]));
  }

  /** Takes references, not strings, because {@link Expressions#identity} and {@code bucket} parse names as SQL. */
  static Transform apply(String name, Expression... arguments) {
    if (name.equals("identity")) return LogicalExpressions.identity((NamedReference) arguments[0]);
    return Expressions.apply(name, arguments);
  }
}
