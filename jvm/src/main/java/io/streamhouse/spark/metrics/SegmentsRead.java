package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Scan metric. Spark instantiates it by class name to sum up the values of tasks. */
public final class SegmentsRead extends CustomSumMetric {
  static final String NAME = "segmentsRead";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "segments read";
  }
}
