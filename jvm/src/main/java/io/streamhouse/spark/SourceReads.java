package io.streamhouse.spark;

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
 * Gives batch reads of {@code format("streamhouse")} the table that the catalog reads, and so its plan and its readers;
 * and its streams that append the writer of small batches.
 *
 * <p>Spark makes this rule anew for each query, and asks it several times. So {@link SourceRead} remembers the answers.
 */
final class SourceReads extends Rule<LogicalPlan> {
  private static final String SWITCH = "spark.sql.streamhouse.jvmReads";

  private final Supplier<PythonCatalog> catalogs;

  /** Takes the maker of a catalog for the tables of one {@code load}. */
  SourceReads(Supplier<PythonCatalog> catalogs) {
    this.catalogs = catalogs;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    boolean isOn = isOn();
    return plan.transformUp(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof WriteToMicroBatchDataSource
                || node instanceof DataSourceV2Relation && OwnSource.isTable(((DataSourceV2Relation) node).table());
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            return node instanceof DataSourceV2Relation
                ? replaced((DataSourceV2Relation) node, isOn)
                : StreamedSource.in(node);
          }
        });
  }

  /** Whether the session wants the jar's way of reading. */
  static boolean isOn() {
    return Boolean.parseBoolean(SQLConf.get().getConfString(SWITCH, "true").trim());
  }

  private LogicalPlan replaced(DataSourceV2Relation relation, boolean isOn) {
    PythonTable source = (PythonTable) relation.table();
    ReadableTable table = SourceRead.of(source).table(source.schema(), relation.options(), isOn, catalogs);
    if (table == null) return relation;
    List<AttributeReference> asked = CollectionConverters.asJava(relation.output());
    List<AttributeReference> columns = columns(table, asked);
    LogicalPlan read =
        relation.copy(
            table,
            sequence(columns),
            Option.apply(table.catalog),
            Option.apply(table.identifier),
            relation.options(),
            relation.timeTravelSpec());
    return columns.equals(asked) ? read : new Project(sequence(asked), read);
  }

  /** All columns of the table, as Spark has them of a catalog: also those whose buckets tell how rows are spread. */
  private static List<AttributeReference> columns(ReadableTable table, List<AttributeReference> asked) {
    Map<String, AttributeReference> byName = new HashMap<>();
    for (AttributeReference column : asked) byName.put(column.name(), column);
    List<AttributeReference> found =
        new ArrayList<>(CollectionConverters.asJava(DataTypeUtils.toAttributes(table.schema)));
    found.replaceAll(column -> byName.getOrDefault(column.name(), column));
    return found;
  }

  static <T> Seq<T> sequence(List<? extends T> items) {
    return CollectionConverters.<T>asScala(new ArrayList<T>(items)).toList();
  }
}
