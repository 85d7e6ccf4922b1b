package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;

/** Predicates as JSON. */
public final class ExpressionJson {
  private ExpressionJson() {}

  /** A predicate as a tree. A part that has no form here is named as unknown, and Python takes it for anything. */
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

  /** A chain of ANDs or ORs as one: each of its links would nest deeper than JSON is read in Python. */
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
