package io.streamhouse.spark.read;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

class ParquetFiltersTest {
  private static final StructType SCHEMA =
      new StructType()
          .add("a", "int")
          .add("x", "double")
          .add("s", new StructType().add("a", "int").add("x", "float"));

  private static Predicate predicate(String name, Expression... children) {
    return new Predicate(name, children);
  }

  private static Predicate above(String column, int value) {
    return predicate(">", FieldReference.apply(column), new LiteralValue<>(value, DataTypes.IntegerType));
  }

  /** A predicate without a Parquet filter. */
  private static Predicate unknownPredicate() {
    return predicate("STRANGE", FieldReference.column("a"));
  }

  @Test
  void wholePredicatesAreKept() {
    Filter one = new GreaterThan("a", 1);
    Filter two = new GreaterThan("a", 2);
    Predicate first = above("a", 1);
    Predicate second = above("a", 2);
    assertEquals(one, ParquetFilters.whole(first));
    assertEquals(new And(one, two), ParquetFilters.whole(predicate("AND", first, second)));
    assertEquals(new Or(one, two), ParquetFilters.whole(predicate("OR", first, second)));
    assertEquals(new Not(new Or(one, two)), ParquetFilters.whole(predicate("NOT", predicate("OR", first, second))));
  }

  /** Half of an OR or of a NOT would hide rows that match the other half. */
  @Test
  void aPredicateWithAnUnknownPartIsNotPushed() {
    for (String name : new String[] {"AND", "OR"}) {
      assertNull(ParquetFilters.whole(predicate(name, above("a", 1), unknownPredicate())));
      assertNull(ParquetFilters.whole(predicate(name, unknownPredicate(), above("a", 1))));
      assertNull(ParquetFilters.whole(predicate("NOT", predicate(name, above("a", 1), unknownPredicate()))));
    }
    assertNull(ParquetFilters.whole(FieldReference.column("a")));
  }

  @Test
  void floatsAreFoundInsideStructs() {
    assertFalse(ParquetFilters.comparesFloats(above("a", 1), SCHEMA));
    assertFalse(ParquetFilters.comparesFloats(above("s.a", 1), SCHEMA));
    assertTrue(ParquetFilters.comparesFloats(above("x", 1), SCHEMA));
    assertTrue(ParquetFilters.comparesFloats(above("s.x", 1), SCHEMA));
    assertTrue(ParquetFilters.comparesFloats(predicate("OR", above("a", 1), above("x", 1)), SCHEMA));
  }

  @Test
  void unknownColumnsMayBeFloats() {
    assertTrue(ParquetFilters.comparesFloats(above("gone", 1), SCHEMA));
    assertTrue(ParquetFilters.comparesFloats(above("a.deeper", 1), SCHEMA));
  }

  @Test
  void otherPredicatesAreConverted() {
    Filter[] filters = ParquetFilters.of(List.of(above("x", 1), above("a", 1), unknownPredicate()), SCHEMA);
    assertArrayEquals(new Filter[] {new GreaterThan("a", 1)}, filters);
  }
}
