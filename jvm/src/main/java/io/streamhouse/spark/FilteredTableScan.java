package io.streamhouse.spark;

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
final class FilteredTableScan extends TableScan implements SupportsRuntimeV2Filtering {
  FilteredTableScan(
      ReadableTable table, Map<String, String> options, StructType required, Predicate[] predicates, int limit) {
    super(table, options, required, predicates, limit, null);
  }

  @Override
  public NamedReference[] filterAttributes() {
    List<NamedReference> found = new ArrayList<>();
    List<String> wanted = new ArrayList<>(JsonTree.list(table.loaded.get("partition_columns")));
    if (table.bucketColumn() != null) wanted.add(table.bucketColumn());
    for (String column : wanted) {
      if (Arrays.asList(required.fieldNames()).contains(column)) found.add(FieldReference.column(column));
    }
    return found.toArray(new NamedReference[0]);
  }

  /** Plans again with values of a join's other side, known only when the query runs. Spark keeps its partitioning. */
  @Override
  public void filter(Predicate[] found) {
    staysKeyed = keyed();
    predicates.addAll(Arrays.asList(found));
    plan = null;
    readers = null;
  }

  @Override
  boolean mayChange() {
    return filterAttributes().length > 0;
  }
}
