package io.streamhouse.spark;

import org.apache.spark.sql.SparkSession;

/** How many tasks run at once. */
final class Parallelism {
  private Parallelism() {}

  static int ofSession() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }
}
