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
 * Spark's real-time mode: a batch ends when its time is over, and not at an offset that was chosen before. So a batch
 * that runs again has other rows than it had before.
 */
public final class RealTimeMode {
  private static final String TASKS_OPTION = "realTimeTasks";
  private static final String ALLOWED_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck";

  /** Steps of a plan that hand out what they make of a row before they take the next one. */
  private static final Set<String> ROW_BY_ROW_NODES = Set.of("Project", "Filter", "SubqueryAlias", "View");

  private RealTimeMode() {}

  /**
   * Whether the query that this thread runs has a real-time trigger. Spark tells neither sources nor sinks: the
   * thread's query has it.
   */
  static boolean isEnabled() {
    Boolean isRealTime = isRealTime(Thread.currentThread());
    if (isRealTime != null) return isRealTime;
    // Another Spark: real-time mode takes no sink of others unless the list of allowed sinks is switched off.
    return "false".equals(SparkSession.active().conf().get(ALLOWED_CHECK, "true"));
  }

  /** Null where the thread is not one that runs a query of its own. */
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

  /** Refuses a stream into a table where Spark does not say which rows the query reads. */
  public static void rejectSink(String table) {
    if (isEnabled()) throw unsupported(table, "this Spark does not tell which rows the query reads");
  }

  /**
   * The table whose rows the query of this thread writes in real-time mode; null in any other mode. Refuses a query
   * that is more than filters and columns of one such table: its rows' places would not tell which are stored.
   */
  public static LoadedTable sourceTable(String table) {
    if (!Boolean.TRUE.equals(isRealTime(Thread.currentThread()))) return null;
    try {
      return sourceTable(table, (LogicalPlan) invoke(queryOf(Thread.currentThread()), "analyzedPlan"));
    } catch (ReflectiveOperationException e) {
      throw unsupported(table, "this Spark does not tell which rows the query reads");
    }
  }

  private static LoadedTable sourceTable(String table, LogicalPlan plan) throws ReflectiveOperationException {
    LogicalPlan node = plan;
    while (ROW_BY_ROW_NODES.contains(node.getClass().getSimpleName())) {
      for (Expression expression : CollectionConverters.asJava(node.expressions())) {
        if (expression.exists(child -> child.getClass().getSimpleName().startsWith("Python"))) {
          throw unsupported(table, "Python functions take rows in batches");
        }
      }
      node = node.children().head();
    }
    String kind = node.getClass().getSimpleName();
    if (!kind.equals("StreamingRelationV2")) {
      throw unsupported(table, kind + " is more than filters and columns of one table");
    }
    Object read = invoke(node, "table");
    if (!(read instanceof LoadedTable)) throw unsupported(table, node + " is no table of the catalog");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) invoke(node, "extraOptions");
    if ("continue".equalsIgnoreCase(options.get("onDifferentHistory"))) {
      throw unsupported(table, "onDifferentHistory=continue reads other rows at the same offsets");
    }
    return (LoadedTable) read;
  }

  /**
   * The tasks that the query of this thread needs at the same time for what it reads: of a table of the catalog
   * those that its buckets are shared out to, of any other source one, because its plan does not tell how many. 0
   * where this Spark does not tell what the query reads.
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
   * The tasks of the queries in real-time mode that began before the one of this thread, which needs so many, and still
   * run. 0 where this Spark does not tell.
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
        "INVALID_OPTION: stream into " + table + " with a real-time trigger: " + why + ", so rows that come again could"
            + " not be told from new ones; use writeStream.foreach with a writer of your own, or a micro-batch trigger,"
            + " trigger(processingTime=...) or trigger(availableNow=True)");
  }
}
