package io.streamhouse.spark.rules;

import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.rpc.StreamhouseSource;
import io.streamhouse.spark.scan.ReadableTable;
import io.streamhouse.spark.write.StreamWriteTable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.streaming.sources.WriteToMicroBatchDataSource;
import org.apache.spark.sql.internal.SQLConf;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Optimizer rule that lets batch reads of {@code format("streamhouse")} use the catalog's table with its plan and
 * readers. It also gives appending streams the writer of small batches.
 *
 *
 * <p>Spark creates this rule for each query and applies it several times. {@link DataFrameRead} remembers the choice.
 */
public final class DataFrameReadRule extends Rule<LogicalPlan> {
  private static final String ENABLED_CONF = "spark.sql.streamhouse.jvmReads";

  private final Supplier<PythonCatalog> catalogFactory;

  /** Creates the rule. The factory creates a catalog for the tables of one {@code load}. */
  public DataFrameReadRule(Supplier<PythonCatalog> catalogFactory) {
    this.catalogFactory = catalogFactory;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    boolean isEnabled = isEnabled();
    return plan.transformUp(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof WriteToMicroBatchDataSource
                || node instanceof DataSourceV2Relation
                    && StreamhouseSource.isTable(((DataSourceV2Relation) node).table());
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            return node instanceof DataSourceV2Relation
                ? replaceRelation((DataSourceV2Relation) node, isEnabled)
                : StreamWriteTable.replaceIn(node);
          }
        });
  }

  /** Returns whether the session enables reads through the jar. */
  static boolean isEnabled() {
    return Boolean.parseBoolean(SQLConf.get().getConfString(ENABLED_CONF, "true").trim());
  }

  private LogicalPlan replaceRelation(DataSourceV2Relation relation, boolean isEnabled) {
    PythonTable source = (PythonTable) relation.table();
    ReadableTable table =
        DataFrameRead.of(source).table(source.schema(), relation.options(), isEnabled, catalogFactory);
    if (table == null) return relation;
    List<AttributeReference> requested = CollectionConverters.asJava(relation.output());
    List<AttributeReference> columns = outputColumns(table, requested);
    LogicalPlan read =
        relation.copy(
            table,
            toSeq(columns),
            Option.apply(table.catalog),
            Option.apply(table.identifier),
            relation.options(),
            relation.timeTravelSpec());
    return columns.equals(requested) ? read : new Project(toSeq(requested), read);
  }

  /** Returns all columns of the table, as for a catalog relation, including those that define its partitioning. */
  private static List<AttributeReference> outputColumns(ReadableTable table, List<AttributeReference> requested) {
    Map<String, AttributeReference> byName = new HashMap<>();
    for (AttributeReference column : requested) byName.put(column.name(), column);
    List<AttributeReference> output =
        new ArrayList<>(CollectionConverters.asJava(DataTypeUtils.toAttributes(table.schema)));
    output.replaceAll(column -> byName.getOrDefault(column.name(), column));
    return output;
  }

  static <T> Seq<T> toSeq(List<? extends T> items) {
    return CollectionConverters.<T>asScala(new ArrayList<T>(items)).toList();
  }
}
