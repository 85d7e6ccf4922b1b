package io.streamhouse.spark.scan;

import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.types.StructType;

/** The scan of a query that only reads: Spark may filter it by the values that the other side of a join has. */
final class RuntimeFilteredTableScan extends TableScan implements SupportsRuntimeV2Filtering {
  RuntimeFilteredTableScan(
      ReadableTable table, Map<String, String> options, StructType required, Predicate[] predicates, int limit) {
    super(table, options, required, predicates, limit, null);
  }

  @Override
  public NamedReference[] filterAttributes() {
    List<NamedReference> attributes = new ArrayList<>();
    List<String> candidates = new ArrayList<>(Json.toList(table.metadata.get("partition_columns")));
    if (table.bucketColumn() != null) candidates.add(table.bucketColumn());
    for (String column : candidates) {
      if (Arrays.asList(required.fieldNames()).contains(column)) attributes.add(FieldReference.column(column));
    }
    return attributes.toArray(new NamedReference[0]);
  }

  /** Plans again with values of a join's other side, known only when the query runs. Spark keeps its partitioning. */
  @Override
  public void filter(Predicate[] runtimePredicates) {
    mustStayKeyGrouped = isKeyGrouped();
    predicates.addAll(Arrays.asList(runtimePredicates));
    plan = null;
    readerFactory = null;
  }

  @Override
  boolean mayReplan() {
    return filterAttributes().length > 0;
  }
}
