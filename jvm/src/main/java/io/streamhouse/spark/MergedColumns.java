package io.streamhouse.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Adds the columns that a table of the catalog lacks, for a DataFrame that is written by name with {@code mergeSchema}.
 *
 * <p>It runs before Spark compares the columns. The option leaves the plan with it, so columns are added once.
 */
final class MergedColumns extends Rule<LogicalPlan> {
  private static final String OPTION = "mergeSchema";
  private final SparkSession session;

  MergedColumns(SparkSession session) {
    this.session = session;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    Map<String, String> options = options(plan);
    if (options == null || !isAsked(options)) return plan;
    V2WriteCommand command = (V2WriteCommand) plan;
    LogicalPlan table = (LogicalPlan) command.table();
    if (!command.isByName()) return plan;
    if (table instanceof UnresolvedRelation) {
      UnresolvedRelation relation = (UnresolvedRelation) table;
      NamedTable named = NamedTable.of(session, relation);
      if (named == null) return plan;
      add(named.catalog, named.identifier, command.query());
      CaseInsensitiveStringMap kept = new CaseInsensitiveStringMap(without(relation.options()));
      return replaced(plan, options, table, relation.copy(relation.multipartIdentifier(), kept, false));
    }
    if (!(table instanceof DataSourceV2Relation)) return plan;
    DataSourceV2Relation relation = (DataSourceV2Relation) table;
    if (!(relation.table() instanceof WritableTable)) return plan;
    WritableTable written = (WritableTable) relation.table();
    add(written.catalog, written.identifier, command.query());
    return replaced(plan, options, table, loaded(written, relation));
  }

  private static Map<String, String> options(LogicalPlan plan) {
    if (plan instanceof AppendData) return CollectionConverters.asJava(((AppendData) plan).writeOptions());
    if (plan instanceof OverwriteByExpression) {
      return CollectionConverters.asJava(((OverwriteByExpression) plan).writeOptions());
    }
    return plan instanceof OverwritePartitionsDynamic
        ? CollectionConverters.asJava(((OverwritePartitionsDynamic) plan).writeOptions())
        : null;
  }

  private static boolean isAsked(Map<String, String> options) {
    return options.entrySet().stream()
        .anyMatch(option -> option.getKey().equalsIgnoreCase(OPTION) && Boolean.parseBoolean(option.getValue().trim()));
  }

  private void add(PythonCatalog catalog, Identifier identifier, LogicalPlan query) {
    LogicalPlan rows = query.resolved() ? query : session.sessionState().analyzer().execute(query);
    if (!rows.resolved()) return; // Spark says why
    catalog.mergeColumns(identifier, rows.schema());
  }

  private static DataSourceV2Relation loaded(WritableTable written, DataSourceV2Relation relation) {
    try {
      Table table = written.catalog.loadTable(written.identifier);
      return DataSourceV2Relation.create(
          table,
          Option.<CatalogPlugin>apply(written.catalog),
          Option.apply(written.identifier),
          new CaseInsensitiveStringMap(without(relation.options())),
          relation.timeTravelSpec());
    } catch (NoSuchTableException error) {
      return relation;
    }
  }

  private static Map<String, String> without(Map<String, String> options) {
    Map<String, String> kept = new HashMap<>(options);
    kept.keySet().removeIf(OPTION::equalsIgnoreCase);
    return kept;
  }

  /** The command with another table and without the option, whatever else this version of Spark keeps in it. */
  private static LogicalPlan replaced(
      LogicalPlan plan, Map<String, String> options, LogicalPlan before, LogicalPlan after) {
    Object[] parts = CollectionConverters.asJava(plan.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (parts[i] == before) parts[i] = after;
      if (parts[i] instanceof scala.collection.immutable.Map
          && CollectionConverters.asJava((scala.collection.Map<?, ?>) parts[i]).equals(options)) {
        parts[i] = scala.collection.immutable.Map.from(CollectionConverters.asScala(without(options)));
      }
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }
}
