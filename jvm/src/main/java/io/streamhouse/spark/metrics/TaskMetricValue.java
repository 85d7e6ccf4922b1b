package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The value of one metric in one task or on the driver. */
public final class TaskMetricValue implements CustomTaskMetric {
  private final String name;
  private final long value;

  public TaskMetricValue(String name, long value) {
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
