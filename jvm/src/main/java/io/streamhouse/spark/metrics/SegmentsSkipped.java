package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Scan metric. Spark instantiates it by class name to sum up the values of tasks. */
public final class SegmentsSkipped extends CustomSumMetric {
  public static final String NAME = "segmentsSkipped";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "segments skipped by filters";
  }
}
