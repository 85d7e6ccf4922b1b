package io.streamhouse.spark.catalog;

import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * The catalog's functions {@code bucket} and {@code slot}.
 *
 *
 * <p>{@code bucket(n, key)} is Iceberg's bucket transform (table specification, appendix B): Murmur3 with seed 0, the
 * sign bit cleared, modulo n.
 *
 *
 * <p>{@code slot(n, p, key)} maps each bucket to a distinct number whose Spark hash partition out of p is the bucket
 * modulo p. Clustering by it gives each task whole buckets and spreads them evenly.
 */
public final class BucketFunction implements UnboundFunction {
  private static final long serialVersionUID = 1L;
  private final boolean isShuffleHash;

  public BucketFunction(boolean isShuffleHash) {
    this.isShuffleHash = isShuffleHash;
  }

  @Override
  public String name() {
    return isShuffleHash ? "slot" : "bucket";
  }

  @Override
  public String description() {
    return isShuffleHash
        ? "slot(buckets, tasks, key): spreads buckets over tasks"
        : "bucket(n, key): Iceberg's bucket of a key";
  }

  @Override
  public BoundFunction bind(StructType inputs) {
    int numbers = isShuffleHash ? 2 : 1;
    if (inputs.length() != numbers + 1) throw new UnsupportedOperationException(description());
    DataType key = inputs.fields()[numbers].dataType();
    if (!IcebergBucket.supports(key)) throw new UnsupportedOperationException("no bucket of " + key.simpleString());
    return isShuffleHash ? new BucketShuffleHash(key) : new IcebergBucket(key);
  }
}
