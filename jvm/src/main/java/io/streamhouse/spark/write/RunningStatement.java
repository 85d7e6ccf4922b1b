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

/** The statement that is running on the driver. */
final class RunningStatement {
  private RunningStatement() {}

  /** Returns the analyzed plan of the statement, or null if it is unknown. */
  static LogicalPlan analyzedPlan() {
    String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution running = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return running == null ? null : running.analyzed();
  }

  /** Returns the leaves of the plan, including those of subqueries. */
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

  /**
   * Returns whether a leaf may read the table or something derived from it. Which table a leaf of the data source reads
   * is only known to Python.
   */
  static boolean mayRead(LogicalPlan leaf, LoadedTable table) {
    if (!(leaf instanceof DataSourceV2Relation)) return false;
    Table read = ((DataSourceV2Relation) leaf).table();
    if (read instanceof RowLevelOperationTable) read = ((RowLevelOperationTable) read).table();
    if (read instanceof PythonTable) return true;
    return read instanceof LoadedTable && ((LoadedTable) read).id().equals(table.id());
  }
}
