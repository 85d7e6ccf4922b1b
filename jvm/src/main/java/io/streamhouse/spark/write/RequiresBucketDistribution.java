package io.streamhouse.spark.write;

import io.streamhouse.spark.util.Parallelism;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;

/** A write whose tasks own whole buckets, so that a commit has few segments and tasks can make changes of upserts. */
interface RequiresBucketDistribution extends RequiresDistributionAndOrdering {
  WritableTable table();

  @Override
  default int requiredNumPartitions() {
    return Math.min(table().bucketCount(), Math.max(1, Parallelism.ofSession()));
  }

  @Override
  default Distribution requiredDistribution() {
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
