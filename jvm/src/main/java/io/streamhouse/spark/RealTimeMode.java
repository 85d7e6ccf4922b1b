package io.streamhouse.spark;

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
final class RealTimeMode {
  private static final String TASKS_OPTION = "realTimeTasks";
  private static final String ALLOWED_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck";

  /** Steps of a plan that hand out what they make of a row before they take the next one. */
  private static final Set<String> NARROW = Set.of("Project", "Filter", "SubqueryAlias", "View");

  private RealTimeMode() {}

  /**
   * Whether the query that this thread runs has a real-time trigger. Spark tells neither sources nor sinks: the
   * thread's query has it.
   */
  static boolean isOn() {
    Boolean known = isRealTime(Thread.currentThread());
    if (known != null) return known;
    // Another Spark: real-time mode takes no sink of others unless the list of allowed sinks is switched off.
    return "false".equals(SparkSession.active().conf().get(ALLOWED_CHECK, "true"));
  }

  /** Null where the thread is not one that runs a query of its own. */
  static Boolean isRealTime(Thread thread) {
    try {
      Object trigger = of(query(thread), "trigger");
      return trigger.getClass().getSimpleName().equals("RealTimeTrigger");
    } catch (ReflectiveOperationException | RuntimeException e) {
      return null;
    }
  }

  private static Object query(Thread thread) throws ReflectiveOperationException {
    Field query = thread.getClass().getDeclaredField("$outer");
    query.setAccessible(true);
    return query.get(thread);
  }

  /** Refuses a stream into a table where Spark does not say which rows the query reads. */
  static void refuseSink(String table) {
    if (isOn()) throw refused(table, "this Spark does not tell which rows the query reads");
  }

  /**
   * The table whose rows the query of this thread writes in real-time mode; null in any other mode. Refuses a query
   * that is more than filters and columns of one such table: its rows' places would not tell which are stored.
   */
  static LoadedTable source(String table) {
    if (!Boolean.TRUE.equals(isRealTime(Thread.currentThread()))) return null;
    try {
      return source(table, (LogicalPlan) of(query(Thread.currentThread()), "analyzedPlan"));
    } catch (ReflectiveOperationException e) {
      throw refused(table, "this Spark does not tell which rows the query reads");
    }
  }

  private static LoadedTable source(String table, LogicalPlan plan) throws ReflectiveOperationException {
    LogicalPlan node = plan;
    while (NARROW.contains(node.getClass().getSimpleName())) {
      for (Expression each : CollectionConverters.asJava(node.expressions())) {
        if (each.exists(one -> one.getClass().getSimpleName().startsWith("Python"))) {
          throw refused(table, "Python functions take rows in batches");
        }
      }
      node = node.children().head();
    }
    String kind = node.getClass().getSimpleName();
    if (!kind.equals("StreamingRelationV2")) {
      throw refused(table, kind + " is more than filters and columns of one table");
    }
    Object read = of(node, "table");
    if (!(read instanceof LoadedTable)) throw refused(table, node + " is no table of the catalog");
    CaseInsensitiveStringMap options = (CaseInsensitiveStringMap) of(node, "extraOptions");
    if ("continue".equalsIgnoreCase(options.get("onDifferentHistory"))) {
      throw refused(table, "onDifferentHistory=continue reads other rows at the same offsets");
    }
    return (LoadedTable) read;
  }

  /**
   * The tasks that the query of this thread needs at the same time for what it reads: of a table of the catalog
   * those that its buckets are shared out to, of any other source one, because its plan does not tell how many. 0
   * where this Spark does not tell what the query reads.
   */
  static int tasks() {
    try {
      LogicalPlan plan = (LogicalPlan) of(query(Thread.currentThread()), "analyzedPlan");
      int tasks = 0;
      for (LogicalPlan leaf : CollectionConverters.asJava(plan.collectLeaves())) {
        if (leaf.getClass().getSimpleName().equals("StreamingRelationV2")) {
          tasks += tasks(of(leaf, "table"), (CaseInsensitiveStringMap) of(leaf, "extraOptions"));
        }
      }
      return tasks;
    } catch (ReflectiveOperationException | RuntimeException e) {
      return 0;
    }
  }

  private static int tasks(Object read, CaseInsensitiveStringMap options) {
    int wanted = options.getInt(TASKS_OPTION, 1);
    return read instanceof LoadedTable ? Math.min(wanted, ((LoadedTable) read).bucketsOfLog()) : 1;
  }

  /**
   * The tasks of the queries in real-time mode that began before the one of this thread, which needs so many, and still
   * run. 0 where this Spark does not tell.
   */
  static int taken(int tasks) {
    try {
      return RealTimeTasks.before(query(Thread.currentThread()), tasks);
    } catch (ReflectiveOperationException | RuntimeException e) {
      return 0;
    }
  }

  static Object of(Object owner, String name) throws ReflectiveOperationException {
    return owner.getClass().getMethod(name).invoke(owner);
  }

  static RuntimeException refused(String table, String why) {
    return Errors.analysis(
        "INVALID_OPTION: stream into " + table + " with a real-time trigger: " + why + ", so rows that come again could"
            + " not be told from new ones; use writeStream.foreach with a writer of your own, or a micro-batch trigger,"
            + " trigger(processingTime=...) or trigger(availableNow=True)");
  }
}
