package io.streamhouse.spark;

import java.lang.reflect.Field;
import org.apache.spark.sql.SparkSession;

/**
 * Spark's real-time mode: a batch ends when its time is over, and not at an offset that was chosen before. So a batch
 * that runs again has other rows than it had before.
 */
final class RealTimeMode {
  private static final String ALLOWED_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck";

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
      Field query = thread.getClass().getDeclaredField("$outer");
      query.setAccessible(true);
      Object execution = query.get(thread);
      Object trigger = execution.getClass().getMethod("trigger").invoke(execution);
      return trigger.getClass().getSimpleName().equals("RealTimeTrigger");
    } catch (ReflectiveOperationException | RuntimeException e) {
      return null;
    }
  }

  /** Refuses a stream into a table: rows of a batch that runs again would be taken for known ones. */
  static void refuseSink(String table) {
    if (isOn()) throw refused(table);
  }

  /** Refuses it before Spark says that the table cannot be written in update mode, the only one of real-time mode. */
  static void refuseKnownSink(String table) {
    if (Boolean.TRUE.equals(isRealTime(Thread.currentThread()))) throw refused(table);
  }

  private static RuntimeException refused(String table) {
    return Errors.analysis(
        "INVALID_OPTION: stream into " + table + " with a real-time trigger: a batch that runs again has other rows"
            + " there, which would be dropped as known ones; use writeStream.foreach with a writer of your own, or a"
            + " micro-batch trigger, trigger(processingTime=...) or trigger(availableNow=True)");
  }
}
