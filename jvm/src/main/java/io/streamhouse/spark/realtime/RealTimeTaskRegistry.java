package io.streamhouse.spark.realtime;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;

/**
 * Registry of the tasks of running real-time queries, each of which occupies a core for as long as its query runs.
 *
 *
 * <p>Queries of an application share its cores. They are counted in the order in which they started, so a running query
 * is never rejected because of a later one.
 */
final class RealTimeTaskRegistry {
  private static final List<RealTimeTaskRegistry> RUNNING = new ArrayList<>();

  private final WeakReference<Object> query;
  private int count;

  private RealTimeTaskRegistry(Object query, int count) {
    this.query = new WeakReference<>(query);
    this.count = count;
  }

  /** Registers the tasks of a query. Returns those of queries that started earlier and still run. */
  static synchronized int registerAndCountEarlier(Object query, int count) {
    RUNNING.removeIf(entry -> !entry.isRunning());
    int earlierTasks = 0;
    for (RealTimeTaskRegistry earlier : RUNNING) {
      if (earlier.query.get() == query) {
        earlier.count = count;
        return earlierTasks;
      }
      earlierTasks += earlier.count;
    }
    RUNNING.add(new RealTimeTaskRegistry(query, count));
    return earlierTasks;
  }

  private boolean isRunning() {
    Object runningQuery = query.get();
    try {
      return runningQuery != null && Boolean.TRUE.equals(RealTimeMode.invoke(runningQuery, "isActive"));
    } catch (ReflectiveOperationException | RuntimeException e) {
      return false;
    }
  }
}
