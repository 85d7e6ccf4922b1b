package io.streamhouse.spark.realtime;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;

/**
 * The tasks of a query in real-time mode, each of which has a core for as long as the query runs.
 *
 * <p>Queries of one application share its cores. They are counted in the order in which they began, so a query that
 * runs is never refused because of one that begins later.
 */
final class RealTimeTaskRegistry {
  private static final List<RealTimeTaskRegistry> RUNNING = new ArrayList<>();

  private final WeakReference<Object> query;
  private int count;

  private RealTimeTaskRegistry(Object query, int count) {
    this.query = new WeakReference<>(query);
    this.count = count;
  }

  /** Notes how many tasks a query needs. Returns how many those have that began before it and still run. */
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
