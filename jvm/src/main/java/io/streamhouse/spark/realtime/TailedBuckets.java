package io.streamhouse.spark.realtime;

import org.apache.spark.sql.connector.read.InputPartition;

/** The buckets that one task follows, as Python describes them. */
final class TailedBuckets implements InputPartition {
  private static final long serialVersionUID = 1L;
  final String task;

  TailedBuckets(String task) {
    this.task = task;
  }
}
