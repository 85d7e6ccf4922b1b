package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Scan and write metric. Spark instantiates it by class name to sum up the values of tasks. */
public final class StoreRequests extends CustomSumMetric {
  static final String NAME = "storeRequests";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "requests to the store";
  }
}
