package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.ExpressionJson;
import io.streamhouse.spark.util.Json;
import java.util.Arrays;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** Builds an append, or a write that overwrites all rows or a part of them. */
class TableWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private final WritableTable table;
  private final LogicalWriteInfo info;
  private WriteBuilder inner;

  /** The part of the table to overwrite, or null for none or all. */
  private ObjectNode overwriteFilter;

  TableWriteBuilder(WritableTable table, LogicalWriteInfo info, WriteBuilder inner) {
    this.table = table;
    this.info = info;
    this.inner = inner;
  }

  @Override
  public WriteBuilder truncate() {
    inner = ((SupportsTruncate) inner).truncate();
    return this;
  }

  /** Implements REPLACE WHERE, and INSERT OVERWRITE of a named partition. */
  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    if (predicates.length == 0 || Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance)) return truncate();
    overwriteFilter = Json.object();
    ArrayNode trees = overwriteFilter.putArray("filters");
    for (Predicate predicate : predicates) trees.add(ExpressionJson.of(predicate));
    return this;
  }

  /**
   * Overwrites the whole table if it has no partitions. Buckets do not count as partitions, because users do not know
   * them.
   */
  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    if (!Arrays.stream(table.partitioning()).anyMatch(part -> !part.name().equals("bucket"))) return truncate();
    overwriteFilter = Json.object();
    return this;
  }

  @Override
  public Write build() {
    return new TableWrite(table, info, inner.build(), overwriteFilter);
  }
}
