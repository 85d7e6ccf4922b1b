package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;

/** Encodes predicates as JSON. */
public final class ExpressionJson {
  private ExpressionJson() {}

  /**
   * Encodes an expression as a tree. A part that has no encoding is marked as unknown, and Python assumes that it may
   * match.
   */
  public static ObjectNode of(Expression expression) {
    if (expression instanceof NamedReference) {
      ObjectNode node = Json.object();
      ArrayNode path = node.putArray("column");
      for (String part : ((NamedReference) expression).fieldNames()) path.add(part);
      return node;
    }
    if (expression instanceof Literal) {
      Literal<?> literal = (Literal<?>) expression;
      JsonNode value = ValueJson.of(literal.value());
      if (value == null) return Json.object().put("unknown", literal.toString());
      ObjectNode node = Json.object().put("type", literal.dataType().json());
      node.set("literal", value);
      return node;
    }
    if (expression instanceof GeneralScalarExpression) {
      ObjectNode node = Json.object().put("op", ((GeneralScalarExpression) expression).name());
      ArrayNode children = node.putArray("children");
      addChildren((GeneralScalarExpression) expression, children);
      return node;
    }
    return Json.object().put("unknown", expression.toString());
  }

  /** Flattens a chain of ANDs or ORs, which would nest deeper than Python's JSON parser accepts. */
  private static void addChildren(GeneralScalarExpression expression, ArrayNode children) {
    boolean chains = expression.name().equals("AND") || expression.name().equals("OR");
    for (Expression child : expression.children()) {
      boolean continues = chains && child instanceof GeneralScalarExpression
          && ((GeneralScalarExpression) child).name().equals(expression.name());
      if (continues) addChildren((GeneralScalarExpression) child, children);
      else children.add(of(child));
    }
  }
}
