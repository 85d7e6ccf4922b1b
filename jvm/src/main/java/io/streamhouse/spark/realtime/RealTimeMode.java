package io.streamhouse.spark.realtime;

import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.util.SparkErrors;
import java.lang.reflect.Field;
import java.util.Set;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Access to what Spark's real-time mode does not tell sources and sinks. In this mode a batch ends after a time, not at
 * an offset that was planned. So a batch that runs again has other rows.
 */
public final class RealTimeMode {
  private static final String TASKS_OPTION = "realTimeTasks";
  private static final String ALLOWED_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck";

  /** Plan nodes that output a row before they take the next one. */
  private static final Set<String> ROW_BY_ROW_NODES = Set.of("Project", "Filter", "SubqueryAlias", "View");

  private RealTimeMode() {}

  /** Returns whether the query of this thread has a real-time trigger, which only the query object tells. */
  static boolean isEnabled() {
    Boolean isRealTime = isRealTime(Thread.currentThread());
    if (isRealTime != null) return isRealTime;
    // an unknown Spark: its real-time mode rejects our sink unless the allowlist check is off
    return "false".equals(SparkSession.active().conf().get(ALLOWED_CHECK, "true"));
  }

  /** Returns whether the thread's query is real-time, or null if the thread does not run a query. */
  public static Boolean isRealTime(Thread thread) {
    try {
      Object trigger = invoke(queryOf(thread), "trigger");
      return trigger.getClass().getSimpleName().equals("RealTimeTrigger");
    } catch (ReflectiveOperationException | RuntimeException e) {
      return null;
    }
  }

  private static Object queryOf(Thread thread) throws ReflectiveOperationException {
    Field query = thread.getClass().getDeclaredField("$outer");
    query.setAccessible(true);
    return query.get(thread);
  }

  /** Rejects a real-time stream into a table if Spark does not tell which rows the query reads. */
  public static void rejectSink(String table) {
    if (isEnabled()) throw unsupported(table, "this Spark does not show which rows the query reads");
  }

  /**
   * Returns the table that the real-time query of this thread reads, or null in any other mode. Rejects a query that is
   * more than filters and projections of one table, because offsets would not identify its rows.
   */
  public static LoadedTable sourceTable(String table) {
    if (!Boolean.TRUE.equals(isRealTime(Thread.currentThread()))) return null;
    try {
      return sourceTable(table, (LogicalPlan) invoke(queryOf(Thread.currentThread()), "analyzedPlan"));
    } catch (ReflectiveOperationException e) {
      throw unsupported(table, "this Spark does not show which rows the query reads");
    }
  }

  private static LoadedTable sourceTable(String table, LogicalPlan plan) throws ReflectiveOperationException {
    LogicalPlan node = plan;
    while (ROW_BY_ROW_NODES.contains(node.getClass().getSimpleName())) {
      for (Expression expression : CollectionConverters.asJava(node.expressions())) {
        if (expression.exists(child -> child.getClass().getSimpleName().startsWith("Python"))) {
          throw unsupported(table, "Python functions process rows in batches");
        }
      }
      node = node.children().head();
    }
    String kind = node.getClass().getSimpleName();
    if (!kind.equals("StreamingRelationV2")) {
      throw unsupported(table, kind + " does more than filter and project one table");
    }
    Object read = invoke(node, "table");
    if (!(read instanceof LoadedTable)) throw unsupported(table, node + " is not a catalog table");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) invoke(node, "extraOptions");
    if ("continue".equalsIgnoreCase(options.get("onDifferentHistory"))) {
      throw unsupported(table, "onDifferentHistory=continue may read other rows at equal offsets");
    }
    return (LoadedTable) read;
  }

  /**
   * Returns how many tasks the query of this thread runs concurrently to read its sources. A table of the catalog needs
   * at most one per bucket. Any other source counts as one, because its plan does not tell. Returns 0 if this Spark
   * does not tell what the query reads.
   */
  static int requiredTasks() {
    try {
      LogicalPlan plan = (LogicalPlan) invoke(queryOf(Thread.currentThread()), "analyzedPlan");
      int tasks = 0;
      for (LogicalPlan leaf : CollectionConverters.asJava(plan.collectLeaves())) {
        if (leaf.getClass().getSimpleName().equals("StreamingRelationV2")) {
          tasks += requiredTasks(invoke(leaf, "table"), (CaseInsensitiveStringMap) invoke(leaf, "extraOptions"));
        }
      }
      return tasks;
    } catch (ReflectiveOperationException | RuntimeException e) {
      return 0;
    }
  }

  private static int requiredTasks(Object read, CaseInsensitiveStringMap options) {
    int requested = options.getInt(TASKS_OPTION, 1);
    return read instanceof LoadedTable ? Math.min(requested, ((LoadedTable) read).logBucketCount()) : 1;
  }

  /**
   * Returns the tasks of running real-time queries that started before the query of this thread, or 0 if this Spark
   * does not tell. Registers the query with {@code tasks}.
   */
  static int tasksOfEarlierQueries(int tasks) {
    try {
      return RealTimeTaskRegistry.registerAndCountEarlier(queryOf(Thread.currentThread()), tasks);
    } catch (ReflectiveOperationException | RuntimeException e) {
      return 0;
    }
  }

  static Object invoke(Object owner, String name) throws ReflectiveOperationException {
    return owner.getClass().getMethod(name).invoke(owner);
  }

  static RuntimeException unsupported(String table, String why) {
    return SparkErrors.analysisException(
        "INVALID_OPTION: stream into " + table + " with a real-time trigger: " + why + ", so repeated rows cannot be"
            + " detected; use writeStream.foreach with your own writer, or a micro-batch trigger,"
            + " trigger(processingTime=...) or trigger(availableNow=True)");
  }
}
