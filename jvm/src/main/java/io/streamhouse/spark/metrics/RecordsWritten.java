package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** A metric of a write. Spark makes one by the name of the class, to add up what tasks tell. */
public final class RecordsWritten extends CustomSumMetric {
  public static final String NAME = "recordsWritten";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "rows written";
  }
}
