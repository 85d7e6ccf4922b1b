package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.expressions.Cast;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

class ExpressionJsonTest {
  private static Predicate predicate(String name, Expression... children) {
    return new Predicate(name, children);
  }

  private static Predicate above(int value) {
    return predicate(">", FieldReference.column("a"), new LiteralValue<>(value, DataTypes.IntegerType));
  }

  private static void assertTree(String expected, Expression expression) {
    assertEquals(Json.parse(expected), Json.parse(ExpressionJson.of(expression).toString()));
  }

  @Test
  void comparisons() {
    assertTree(
        "{\"op\":\">\",\"children\":[{\"column\":[\"a\"]},{\"type\":\"\\\"integer\\\"\",\"literal\":3}]}",
        above(3));
    assertTree("{\"column\":[\"s\",\"x.y\"]}", FieldReference.apply("s.`x.y`"));
    assertTree(
        "{\"type\":\"\\\"string\\\"\",\"literal\":null}",
        new LiteralValue<UTF8String>(null, DataTypes.StringType));
    assertTree(
        "{\"type\":\"\\\"double\\\"\",\"literal\":\"NaN\"}",
        new LiteralValue<>(Double.NaN, DataTypes.DoubleType));
  }

  /** Python's JSON parser is limited by its stack, so a long chain is flattened. */
  @Test
  void longChainsAreFlattened() {
    for (String name : new String[] {"AND", "OR"}) {
      Predicate left = above(0);
      Predicate right = above(0);
      for (int i = 1; i < 1000; i++) {
        left = predicate(name, left, above(i));
        right = predicate(name, above(i), right);
      }
      for (Predicate chain : new Predicate[] {left, right}) {
        JsonNode children = ExpressionJson.of(chain).get("children");
        assertEquals(1000, children.size());
        children.forEach(child -> assertEquals(">", child.get("op").asText()));
      }
      assertEquals(0, ExpressionJson.of(left).at("/children/0/children/1/literal").asInt());
      assertEquals(999, ExpressionJson.of(left).at("/children/999/children/1/literal").asInt());
    }
  }

  @Test
  void mixedOperatorsAreNotFlattened() {
    Predicate mixed = predicate("AND", predicate("OR", above(1), above(2)), above(3));
    assertEquals(2, ExpressionJson.of(mixed).get("children").size());
    assertEquals("OR", ExpressionJson.of(mixed).at("/children/0/op").asText());
    Predicate twice = predicate("NOT", predicate("NOT", above(1)));
    assertEquals("NOT", ExpressionJson.of(twice).at("/children/0/op").asText());
  }

  @Test
  void partsWithoutAnEncodingAreUnknown() {
    Expression cast = new Cast(FieldReference.column("a"), DataTypes.IntegerType, DataTypes.LongType);
    JsonNode tree = ExpressionJson.of(predicate("=", cast, new LiteralValue<>(1L, DataTypes.LongType)));
    assertTrue(tree.at("/children/0").has("unknown"));
    GenericArrayData array = new GenericArrayData(new Object[] {1});
    LiteralValue<Object> literal = new LiteralValue<>(array, DataTypes.createArrayType(DataTypes.IntegerType));
    assertTrue(ExpressionJson.of(literal).has("unknown"));
  }
}
