package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** A metric of a write. Spark makes one by the name of the class, to add up what tasks tell. */
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
