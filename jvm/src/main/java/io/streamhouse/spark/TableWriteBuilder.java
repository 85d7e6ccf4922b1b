package io.streamhouse.spark;

import java.util.Arrays;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;

/** Builds a write: an append, or one that replaces all rows. */
class TableWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private static final String INSTEAD =
      "; DELETE the rows and INSERT the new ones, use MERGE, or replace all rows with INSERT OVERWRITE";
  private final WritableTable table;
  private final LogicalWriteInfo info;
  private WriteBuilder inner;

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

  /** Handles REPLACE WHERE, and INSERT OVERWRITE of a named partition. */
  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    if (predicates.length == 0 || Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance)) return truncate();
    throw Errors.analysis(
        "INVALID_OPTION: table " + table.tableName() + ": one write cannot replace the rows of a condition or"
            + " partition (" + Arrays.stream(predicates).map(Predicate::toString).collect(Collectors.joining(" AND "))
            + ")" + INSTEAD);
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    throw Errors.analysis(
        "INVALID_OPTION: table " + table.tableName() + ": one write cannot replace the partitions that its rows are of,"
            + " as overwritePartitions() and spark.sql.sources.partitionOverwriteMode = dynamic ask" + INSTEAD);
  }

  @Override
  public Write build() {
    return table.clusters(info.schema())
        ? new BucketedWrite(table, info, inner.build())
        : new TableWrite(table, info, inner.build());
  }
}
