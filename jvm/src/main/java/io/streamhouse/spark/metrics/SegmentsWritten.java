package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Write metric. Spark instantiates it by class name to sum up the values of tasks. */
public final class SegmentsWritten extends CustomSumMetric {
  static final String NAME = "segmentsWritten";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "segments written";
  }
}
