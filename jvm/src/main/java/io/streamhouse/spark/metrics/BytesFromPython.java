package io.streamhouse.spark.metrics;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** A metric of a scan. Spark makes one by the name of the class, to add up what tasks tell. */
public final class BytesFromPython extends CustomSumMetric {
  public static final String NAME = "bytesFromPython";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "bytes of Arrow from Python";
  }
}
