package io.streamhouse.spark.catalog;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

/** The bucket function against the test vectors of Iceberg's table specification, appendix B. */
class IcebergBucketTest {
  private static final int ALL = Integer.MAX_VALUE;

  private static int bucket(DataType type, int buckets, Object key) {
    return new IcebergBucket(type).produceResult(new GenericInternalRow(new Object[] {buckets, key}));
  }

  /** With the maximum number of buckets, the bucket is the hash without its sign. */
  private static void assertHash(int hash, DataType type, Object key) {
    for (int buckets : new int[] {1, 2, 7, 16, 1000, ALL}) {
      assertEquals((hash & Integer.MAX_VALUE) % buckets, bucket(type, buckets, key), type + " of " + buckets);
    }
  }

  @Test
  void integersOfAllSizesHashAlike() {
    assertHash(2017239379, DataTypes.IntegerType, 34);
    assertHash(2017239379, DataTypes.LongType, 34L);
    assertHash(2017239379, DataTypes.ShortType, (short) 34);
    assertHash(2017239379, DataTypes.ByteType, (byte) 34);
  }

  @Test
  void decimals() {
    DataType type = DataTypes.createDecimalType(9, 2);
    assertHash(-500754589, type, Decimal.apply(new BigDecimal("14.20"), 9, 2));
  }

  @Test
  void datesAndTimestamps() {
    assertHash(-653330422, DataTypes.DateType, (int) LocalDate.of(2017, 11, 16).toEpochDay());
    LocalDateTime time = LocalDateTime.of(2017, 11, 16, 22, 31, 8);
    long micros = ChronoUnit.MICROS.between(LocalDateTime.of(1970, 1, 1, 0, 0), time);
    assertEquals(time.toEpochSecond(ZoneOffset.UTC) * 1_000_000, micros);
    for (DataType type : new DataType[] {DataTypes.TimestampType, DataTypes.TimestampNTZType}) {
      assertHash(-2047944441, type, micros);
      assertHash(-1207196810, type, micros + 1);
    }
  }

  @Test
  void stringsAndBytes() {
    assertHash(1210000089, DataTypes.StringType, UTF8String.fromString("iceberg"));
    assertHash(-188683207, DataTypes.BinaryType, new byte[] {0, 1, 2, 3});
  }

  @Test
  void nullIsInBucketZero() {
    assertEquals(0, bucket(DataTypes.LongType, 16, null));
    assertEquals(0, bucket(DataTypes.StringType, 16, null));
  }

  @Test
  void typesWithoutABucketAreRejected() {
    assertFalse(IcebergBucket.supports(DataTypes.DoubleType));
    assertFalse(IcebergBucket.supports(DataTypes.FloatType));
    assertFalse(IcebergBucket.supports(DataTypes.BooleanType));
    assertFalse(IcebergBucket.supports(DataTypes.createArrayType(DataTypes.LongType)));
    StructType inputs = new StructType().add("n", "int").add("key", "double");
    BucketFunction function = new BucketFunction(false);
    Exception error = assertThrows(UnsupportedOperationException.class, () -> function.bind(inputs));
    assertEquals("no bucket of double", error.getMessage());
    assertThrows(UnsupportedOperationException.class, () -> function.bind(new StructType().add("key", "int")));
  }

  @Test
  void functionsAreBoundToTheTypeOfTheKey() {
    StructType two = new StructType().add("n", "int").add("key", "string");
    StructType three = new StructType().add("n", "int").add("p", "int").add("key", "string");
    assertEquals("streamhouse.bucket(string)", ((IcebergBucket) new BucketFunction(false).bind(two)).canonicalName());
    assertEquals("streamhouse.slot(string)", ((IcebergBucket) new BucketFunction(true).bind(three)).canonicalName());
    assertThrows(UnsupportedOperationException.class, () -> new BucketFunction(true).bind(two));
  }

  /** Each bucket has a distinct slot whose Spark hash partition is the bucket modulo the number of tasks. */
  @Test
  void slotsSpreadBucketsEvenlyOverTasks() {
    for (int tasks : new int[] {1, 2, 3, 8}) {
      int buckets = 16;
      BucketShuffleHash slot = new BucketShuffleHash(DataTypes.LongType);
      Set<Integer> slots = new HashSet<>();
      Set<Integer> seen = new HashSet<>();
      for (long key = 0; key < 1000; key++) {
        int hash = slot.produceResult(new GenericInternalRow(new Object[] {buckets, tasks, key}));
        int bucket = bucket(DataTypes.LongType, buckets, key);
        assertEquals(bucket % tasks, Math.floorMod(Murmur3_x86_32.hashInt(hash, 42), tasks));
        slots.add(hash);
        seen.add(bucket);
      }
      assertEquals(buckets, seen.size());
      assertEquals(buckets, slots.size());
      assertTrue(slots.stream().allMatch(count -> count >= 0));
    }
  }
}
