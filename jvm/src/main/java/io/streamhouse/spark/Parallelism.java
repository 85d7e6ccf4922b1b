package io.streamhouse.spark;

import org.apache.spark.sql.SparkSession;

/** The number of tasks that run at once. */
final class Parallelism {
  private Parallelism() {}

  static int ofSession() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }
}
