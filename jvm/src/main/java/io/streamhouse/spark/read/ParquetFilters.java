package io.streamhouse.spark.read;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.internal.connector.PredicateUtils;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.Not;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.StructType;
import scala.Option;

/**
 * Converts predicates to filters of Spark's Parquet reader, which skips row groups by them. Each filter keeps all
 * matching rows.
 */
final class ParquetFilters {
  private ParquetFilters() {}

  /** Converts the predicates that can be converted as a whole. */
  static Filter[] of(List<Predicate> predicates, StructType schema) {
    List<Filter> filters = new ArrayList<>();
    for (Predicate predicate : predicates) {
      if (comparesFloats(predicate, schema)) continue;
      Filter filter = whole(predicate);
      if (filter != null) filters.add(filter);
    }
    return filters.toArray(new Filter[0]);
  }

  /** Converts a whole predicate, or returns null. Spark's own conversion might return one side of an OR. */
  static Filter whole(Expression expression) {
    if (!(expression instanceof Predicate)) return null;
    Predicate predicate = (Predicate) expression;
    Filter[] children = new Filter[predicate.children().length];
    switch (predicate.name()) {
      case "AND":
      case "OR":
      case "NOT":
        for (int i = 0; i < children.length; i++) {
          children[i] = whole(predicate.children()[i]);
          if (children[i] == null) return null;
        }
        break;
      default:
        Option<Filter> leaf = PredicateUtils.toV1(predicate);
        return leaf.isDefined() ? leaf.get() : null;
    }
    if (children.length == 1) return new Not(children[0]);
    return predicate.name().equals("AND")
        ? new And(children[0], children[1])
        : new Or(children[0], children[1]);
  }

  /**
   * Returns whether a predicate compares floats. Parquet statistics ignore NaN, which is the greatest number in Spark.
   */
  static boolean comparesFloats(Predicate predicate, StructType schema) {
    for (NamedReference column : predicate.references()) {
      DataType type = schema;
      for (String name : column.fieldNames()) {
        if (!(type instanceof StructType)) return true;
        StructType struct = (StructType) type;
        if (!Arrays.asList(struct.fieldNames()).contains(name)) return true;
        type = struct.apply(name).dataType();
      }
      if (type instanceof FloatType || type instanceof DoubleType) return true;
    }
    return false;
  }
}
