package io.streamhouse.spark;

import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;

/**
 * The tasks of a query in real-time mode, each of which has a core for as long as the query runs.
 *
 * <p>Queries of one application share its cores. They are counted in the order in which they began, so a query that
 * runs is never refused because of one that begins later.
 */
final class RealTimeTasks {
  private static final List<RealTimeTasks> RUNNING = new ArrayList<>();

  private final WeakReference<Object> query;
  private int count;

  private RealTimeTasks(Object query, int count) {
    this.query = new WeakReference<>(query);
    this.count = count;
  }

  /** Notes how many tasks a query needs. Returns how many those have that began before it and still run. */
  static synchronized int before(Object query, int count) {
    RUNNING.removeIf(each -> !each.isRunning());
    int before = 0;
    for (RealTimeTasks each : RUNNING) {
      if (each.query.get() == query) {
        each.count = count;
        return before;
      }
      before += each.count;
    }
    RUNNING.add(new RealTimeTasks(query, count));
    return before;
  }

  private boolean isRunning() {
    Object found = query.get();
    try {
      return found != null && Boolean.TRUE.equals(RealTimeMode.of(found, "isActive"));
    } catch (ReflectiveOperationException | RuntimeException e) {
      return false;
    }
  }
}
