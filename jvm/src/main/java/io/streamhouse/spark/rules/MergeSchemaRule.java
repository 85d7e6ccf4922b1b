package io.streamhouse.spark.rules;

import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.write.WritableTable;
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
 * Adds missing columns to a table of the catalog when a DataFrame is written by name with {@code mergeSchema}.
 *
 *
 * <p>It runs before Spark compares the columns. It removes the option from the plan, so that columns are added once.
 */
public final class MergeSchemaRule extends Rule<LogicalPlan> {
  private static final String OPTION = "mergeSchema";
  private final SparkSession session;

  public MergeSchemaRule(SparkSession session) {
    this.session = session;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    Map<String, String> options = writeOptions(plan);
    if (options == null || !hasMergeSchema(options)) return plan;
    V2WriteCommand command = (V2WriteCommand) plan;
    LogicalPlan table = (LogicalPlan) command.table();
    if (!command.isByName()) return plan;
    if (table instanceof UnresolvedRelation) {
      UnresolvedRelation relation = (UnresolvedRelation) table;
      UnresolvedTableName unresolved = UnresolvedTableName.resolve(session, relation);
      if (unresolved == null) return plan;
      addMissingColumns(unresolved.catalog, unresolved.identifier, command.query());
      CaseInsensitiveStringMap remainingOptions = new CaseInsensitiveStringMap(withoutOption(relation.options()));
      return replaceTable(plan, options, table, relation.copy(relation.multipartIdentifier(), remainingOptions, false));
    }
    if (!(table instanceof DataSourceV2Relation)) return plan;
    DataSourceV2Relation relation = (DataSourceV2Relation) table;
    if (!(relation.table() instanceof WritableTable)) return plan;
    WritableTable written = (WritableTable) relation.table();
    addMissingColumns(written.catalog, written.identifier, command.query());
    return replaceTable(plan, options, table, reloadRelation(written, relation));
  }

  private static Map<String, String> writeOptions(LogicalPlan plan) {
    if (plan instanceof AppendData) return CollectionConverters.asJava(((AppendData) plan).writeOptions());
    if (plan instanceof OverwriteByExpression) {
      return CollectionConverters.asJava(((OverwriteByExpression) plan).writeOptions());
    }
    return plan instanceof OverwritePartitionsDynamic
        ? CollectionConverters.asJava(((OverwritePartitionsDynamic) plan).writeOptions())
        : null;
  }

  private static boolean hasMergeSchema(Map<String, String> options) {
    return options.entrySet().stream()
        .anyMatch(option -> option.getKey().equalsIgnoreCase(OPTION) && Boolean.parseBoolean(option.getValue().trim()));
  }

  private void addMissingColumns(PythonCatalog catalog, Identifier identifier, LogicalPlan query) {
    LogicalPlan rows = query.resolved() ? query : session.sessionState().analyzer().execute(query);
    if (!rows.resolved()) return; // Spark reports why
    catalog.mergeColumns(identifier, rows.schema());
  }

  private static DataSourceV2Relation reloadRelation(WritableTable written, DataSourceV2Relation relation) {
    try {
      Table table = written.catalog.loadTable(written.identifier);
      return DataSourceV2Relation.create(
          table,
          Option.<CatalogPlugin>apply(written.catalog),
          Option.apply(written.identifier),
          new CaseInsensitiveStringMap(withoutOption(relation.options())),
          relation.timeTravelSpec());
    } catch (NoSuchTableException error) {
      return relation;
    }
  }

  private static Map<String, String> withoutOption(Map<String, String> options) {
    Map<String, String> remaining = new HashMap<>(options);
    remaining.keySet().removeIf(OPTION::equalsIgnoreCase);
    return remaining;
  }

  /** Returns the command with another table and without the option, whatever other fields this version of Spark has. */
  private static LogicalPlan replaceTable(
      LogicalPlan plan, Map<String, String> options, LogicalPlan before, LogicalPlan after) {
    Object[] parts = CollectionConverters.asJava(plan.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (parts[i] == before) parts[i] = after;
      if (parts[i] instanceof scala.collection.immutable.Map
          && CollectionConverters.asJava((scala.collection.Map<?, ?>) parts[i]).equals(options)) {
        parts[i] = scala.collection.immutable.Map.from(CollectionConverters.asScala(withoutOption(options)));
      }
    }
    return (LogicalPlan) plan.makeCopy(parts);
  }
}
