package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** A metric of a scan. Spark makes one by the name of the class, to add up what tasks tell. */
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
