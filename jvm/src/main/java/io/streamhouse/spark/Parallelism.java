package io.streamhouse.spark;

import org.apache.spark.sql.SparkSession;

final class Parallelism {
  private Parallelism() {}

  static int ofSession() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }
}
