package io.streamhouse.spark.scan;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.RpcResultScan;
import io.streamhouse.spark.rpc.ValueJson;
import io.streamhouse.spark.util.Json;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BooleanSupplier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Collects the columns, predicates, limit and aggregates that Spark pushes down to a scan. */
public final class TableScanBuilder
    implements SupportsPushDownV2Filters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownLimit,
        SupportsPushDownAggregates {
  private final ReadableTable table;
  private final Map<String, String> options;
  private final BooleanSupplier readsOnce;
  private StructType required;
  private Predicate[] predicates = new Predicate[0];
  private int limit = -1;
  private Scan aggregateResult;

  /**
   * Creates a builder. For the scan of a row-level operation, {@code readsOnce} tells whether its statement reads the
   * table once. It is null for any other scan.
   */
  public TableScanBuilder(ReadableTable table, Map<String, String> options, BooleanSupplier readsOnce) {
    this.table = table;
    this.options = options;
    this.readsOnce = readsOnce;
    this.required = table.schema;
  }

  /** Uses all predicates for pruning and returns all of them to Spark, which evaluates them again. */
  @Override
  public Predicate[] pushPredicates(Predicate[] pushed) {
    predicates = pushed;
    return pushed;
  }

  @Override
  public Predicate[] pushedPredicates() {
    return predicates;
  }

  @Override
  public void pruneColumns(StructType requested) {
    required = new StructType();
    // a nested field is read with its top-level column
    Map<String, StructField> topLevelFields = new HashMap<>();
    for (StructField field : table.schema.fields()) topLevelFields.put(field.name(), field);
    for (StructField field : requested.fields()) {
      required = required.add(topLevelFields.getOrDefault(field.name(), field));
    }
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return describeAggregates(aggregation) != null;
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    ArrayNode functions = describeAggregates(aggregation);
    if (functions == null) return false;
    ObjectNode arguments = Json.object().put("snapshot", table.metadata.get("snapshot").asText());
    arguments.set("options", Json.object(options));
    arguments.set("aggregates", functions);
    JsonNode row = table.python.call("aggregate", arguments).get("row");
    if (row == null || row.isNull()) return false;
    StructType schema = new StructType();
    for (int i = 0; i < functions.size(); i++) {
      JsonNode column = functions.get(i).get("column");
      boolean counts = functions.get(i).get("function").asText().startsWith("count");
      schema = schema.add("c" + i, counts ? DataTypes.LongType : table.schema.apply(column.asText()).dataType());
    }
    aggregateResult = new RpcResultScan(schema, new InternalRow[] {ValueJson.readRow(row, schema)});
    return true;
  }

  /** Encodes the functions, or returns null if metadata can never answer one of them. */
  private ArrayNode describeAggregates(Aggregation aggregation) {
    if (aggregation.groupByExpressions().length > 0 || predicates.length > 0) return null;
    ArrayNode functions = Json.array();
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      Expression column = function.children().length == 1 ? function.children()[0] : null;
      String name =
          function instanceof CountStar ? "count_star"
              : function instanceof Count && !((Count) function).isDistinct() ? "count"
              : function instanceof Min ? "min"
              : function instanceof Max ? "max"
              : null;
      if (name == null) return null;
      ObjectNode node = functions.addObject().put("function", name);
      if (function instanceof CountStar) {
        node.putNull("column");
        continue;
      }
      if (!(column instanceof NamedReference) || ((NamedReference) column).fieldNames().length != 1) return null;
      String columnName = ((NamedReference) column).fieldNames()[0];
      if (!Arrays.asList(table.schema.fieldNames()).contains(columnName)) return null;
      node.put("column", columnName);
    }
    return functions;
  }

  @Override
  public Scan build() {
    if (aggregateResult != null) return aggregateResult;
    return readsOnce == null
        ? new RuntimeFilteredTableScan(table, options, required, predicates, limit)
        : new TableScan(table, options, required, predicates, limit, readsOnce);
  }
}
