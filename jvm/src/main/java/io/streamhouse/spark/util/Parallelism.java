package io.streamhouse.spark.util;

import org.apache.spark.sql.SparkSession;

/** The number of tasks that run at once. */
public final class Parallelism {
  private Parallelism() {}

  public static int ofSession() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }
}
