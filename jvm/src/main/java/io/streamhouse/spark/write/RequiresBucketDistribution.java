package io.streamhouse.spark.write;

import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;

/**
 * A write that clusters rows by bucket, so that each task has all rows of its buckets. A commit then has few segments,
 * and tasks can compute the changes of upserts.
 */
interface RequiresBucketDistribution extends RequiresDistributionAndOrdering {
  WritableTable table();

  /** Returns whether the rows have the bucket key. If not, Spark chooses the distribution. */
  boolean isClusteredByBucket();

  @Override
  default int requiredNumPartitions() {
    if (!isClusteredByBucket()) return 0;
    return Math.min(table().bucketCount(), Math.max(1, SparkSession.active().sparkContext().defaultParallelism()));
  }

  @Override
  default Distribution requiredDistribution() {
    if (!isClusteredByBucket()) return Distributions.unspecified();
    Expression[] arguments = {
      Expressions.literal(table().bucketCount()),
      Expressions.literal(requiredNumPartitions()),
      FieldReference.column(table().bucketColumn())
    };
    return Distributions.clustered(new Expression[] {Expressions.apply("slot", arguments)});
  }

  @Override
  default SortOrder[] requiredOrdering() {
    return new SortOrder[0];
  }
}
