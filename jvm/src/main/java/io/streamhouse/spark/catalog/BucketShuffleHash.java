package io.streamhouse.spark.catalog;

import java.util.BitSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/** The bound {@code slot} function: the value that Spark must hash to shuffle each bucket into its task. */
final class BucketShuffleHash extends IcebergBucket {
  private static final long serialVersionUID = 1L;
  private static final int SPARK_SEED = 42;
  private transient int[] hashes;

  BucketShuffleHash(DataType keyType) {
    super(keyType);
  }

  @Override
  public String name() {
    return "slot";
  }

  @Override
  public String canonicalName() {
    return "streamhouse.slot(" + keyType.catalogString() + ")";
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.IntegerType, DataTypes.IntegerType, keyType};
  }

  @Override
  public Integer produceResult(InternalRow input) {
    int buckets = input.getInt(0);
    if (hashes == null) hashes = assignHashes(buckets, input.getInt(1));
    return hashes[bucketOf(input, 2, buckets)];
  }

  private static int[] assignHashes(int buckets, int tasks) {
    int[] hashes = new int[buckets];
    BitSet used = new BitSet();
    for (int bucket = 0; bucket < buckets; bucket++) {
      int hash = 0;
      while (used.get(hash) || Math.floorMod(Murmur3_x86_32.hashInt(hash, SPARK_SEED), tasks) != bucket % tasks) hash++;
      used.set(hash);
      hashes[bucket] = hash;
    }
    return hashes;
  }
}
