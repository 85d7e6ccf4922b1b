package io.streamhouse.spark;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What one task, or the driver, tells of a metric. */
final class TaskCount implements CustomTaskMetric {
  private final String name;
  private final long value;

  TaskCount(String name, long value) {
    this.name = name;
    this.value = value;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public long value() {
    return value;
  }
}
