package io.streamhouse.spark.write;

import io.streamhouse.spark.catalog.LoadedTable;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import scala.jdk.javaapi.CollectionConverters;

/** The statement that is running. */
final class RunningStatement {
  private RunningStatement() {}

  /** The statement's analyzed plan; null if none is known. */
  static LogicalPlan analyzedPlan() {
    String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution running = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return running == null ? null : running.analyzed();
  }

  /** The leaves of the statement's plan, of subqueries too. */
  static List<LogicalPlan> leaves() {
    List<LogicalPlan> leaves = new ArrayList<>();
    LogicalPlan plan = analyzedPlan();
    if (plan == null) return leaves;
    leaves.addAll(CollectionConverters.asJava(plan.collectLeaves()));
    for (LogicalPlan subquery : CollectionConverters.asJava(plan.subqueriesAll())) {
      leaves.addAll(CollectionConverters.asJava(subquery.collectLeaves()));
    }
    return leaves;
  }

  /** Whether a leaf may read this table or something derived from it. Only Python knows the data source's own path. */
  static boolean mayRead(LogicalPlan leaf, LoadedTable table) {
    if (!(leaf instanceof DataSourceV2Relation)) return false;
    Table read = ((DataSourceV2Relation) leaf).table();
    if (read instanceof RowLevelOperationTable) read = ((RowLevelOperationTable) read).table();
    if (read instanceof PythonTable) return true;
    return read instanceof LoadedTable && ((LoadedTable) read).id().equals(table.id());
  }
}
