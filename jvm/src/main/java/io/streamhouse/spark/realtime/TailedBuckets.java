package io.streamhouse.spark.realtime;

import org.apache.spark.sql.connector.read.InputPartition;

/** The input partition of a task that follows a log, as JSON from Python. */
final class TailedBuckets implements InputPartition {
  private static final long serialVersionUID = 1L;
  final String task;

  TailedBuckets(String task) {
    this.task = task;
  }
}
