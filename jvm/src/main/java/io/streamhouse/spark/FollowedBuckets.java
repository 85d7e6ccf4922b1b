package io.streamhouse.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/** The buckets that one task follows, as Python describes them. */
final class FollowedBuckets implements InputPartition {
  private static final long serialVersionUID = 1L;
  final String described;

  FollowedBuckets(String described) {
    this.described = described;
  }
}
