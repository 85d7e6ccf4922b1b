package io.streamhouse.spark;

import java.util.BitSet;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;

/** The number by which Spark spreads a key's bucket. */
final class Slot extends Bucket {
  private static final long serialVersionUID = 1L;
  private static final int SPARK_SEED = 42;
  private transient int[] slots;

  Slot(DataType key) {
    super(key);
  }

  @Override
  public String name() {
    return "slot";
  }

  @Override
  public String canonicalName() {
    return "streamhouse.slot(" + key.catalogString() + ")";
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.IntegerType, DataTypes.IntegerType, key};
  }

  @Override
  public Integer produceResult(InternalRow input) {
    int buckets = input.getInt(0);
    if (slots == null) slots = slots(buckets, input.getInt(1));
    return slots[of(input, 2, buckets)];
  }

  private static int[] slots(int buckets, int tasks) {
    int[] found = new int[buckets];
    BitSet used = new BitSet();
    for (int bucket = 0; bucket < buckets; bucket++) {
      int slot = 0;
      while (used.get(slot) || Math.floorMod(Murmur3_x86_32.hashInt(slot, SPARK_SEED), tasks) != bucket % tasks) slot++;
      used.set(slot);
      found[bucket] = slot;
    }
    return found;
  }
}
