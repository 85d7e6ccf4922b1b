package io.streamhouse.spark.util;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/** XXH3 without a seed, the checksum of every file of a log. */
public final class Xxh3 {
  private static final VarHandle LONGS = MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
  private static final VarHandle INTS = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
  private static final long PRIME32_1 = 0x9E3779B1L;
  private static final long PRIME32_2 = 0x85EBCA77L;
  private static final long PRIME32_3 = 0xC2B2AE3DL;
  private static final long PRIME64_1 = 0x9E3779B185EBCA87L;
  private static final long PRIME64_2 = 0xC2B2AE3D27D4EB4FL;
  private static final long PRIME64_3 = 0x165667B19E3779F9L;
  private static final long PRIME64_4 = 0x85EBCA77C2B2AE63L;
  private static final long PRIME64_5 = 0x27D4EB2F165667C5L;
  private static final int STRIPE = 64;
  private static final int STRIPES_OF_BLOCK = 16;
  private static final int MIDDLE_MAX = 240;

  /** XXH3-128 of up to this many bytes is not implemented, because no file is that short. */
  public static final int MIDDLE_MIN = 128;

  /** The default secret of the algorithm. */
  private static final byte[] SECRET =
      parseHex(
          "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
              + "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
              + "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
              + "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e");

  private Xxh3() {}

  private static byte[] parseHex(String hex) {
    byte[] bytes = new byte[hex.length() / 2];
    for (int i = 0; i < bytes.length; i++) bytes[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
    return bytes;
  }

  private static long longAt(byte[] data, int position) {
    return (long) LONGS.get(data, position);
  }

  private static long intAt(byte[] data, int position) {
    return (int) INTS.get(data, position) & 0xFFFFFFFFL;
  }

  private static long foldMultiply(long a, long b) {
    long high = Math.multiplyHigh(a, b) + ((a >> 63) & b) + ((b >> 63) & a);
    return a * b ^ high;
  }

  private static long avalanche(long hash) {
    hash ^= hash >>> 37;
    hash *= 0x165667919E3779F9L;
    return hash ^ hash >>> 32;
  }

  private static long mix16(byte[] data, int from, int secret) {
    return foldMultiply(longAt(data, from) ^ longAt(SECRET, secret),
        longAt(data, from + 8) ^ longAt(SECRET, secret + 8));
  }

  /** Returns the XXH3-64 of a range of an array. */
  public static long hash64(byte[] data, int from, int length) {
    if (length <= 16) return short64(data, from, length);
    if (length <= 128) return under128(data, from, length);
    if (length <= MIDDLE_MAX) return middle64(data, from, length);
    return merge(accumulate(data, from, length), 11, length * PRIME64_1);
  }

  private static long short64(byte[] data, int from, int length) {
    if (length > 8) {
      long low = longAt(data, from) ^ longAt(SECRET, 24) ^ longAt(SECRET, 32);
      long high = longAt(data, from + length - 8) ^ longAt(SECRET, 40) ^ longAt(SECRET, 48);
      return avalanche(length + Long.reverseBytes(low) + high + foldMultiply(low, high));
    }
    if (length >= 4) {
      long keyed = intAt(data, from + length - 4) + (intAt(data, from) << 32) ^ longAt(SECRET, 8) ^ longAt(SECRET, 16);
      keyed ^= Long.rotateLeft(keyed, 49) ^ Long.rotateLeft(keyed, 24);
      keyed *= 0x9FB21C651E98DF25L;
      keyed ^= (keyed >>> 35) + length;
      keyed *= 0x9FB21C651E98DF25L;
      return keyed ^ keyed >>> 28;
    }
    if (length == 0) return avalanche64(longAt(SECRET, 56) ^ longAt(SECRET, 64));
    long first = data[from] & 0xFF;
    long middle = data[from + (length >> 1)] & 0xFF;
    long last = data[from + length - 1] & 0xFF;
    return avalanche64((first << 16 | middle << 24 | last | (long) length << 8) ^ intAt(SECRET, 0) ^ intAt(SECRET, 4));
  }

  /** Applies the avalanche of XXH64. */
  private static long avalanche64(long hash) {
    hash ^= hash >>> 33;
    hash *= PRIME64_2;
    hash ^= hash >>> 29;
    hash *= PRIME64_3;
    return hash ^ hash >>> 32;
  }

  private static long under128(byte[] data, int from, int length) {
    long sum = length * PRIME64_1;
    for (int i = (length - 1) / 32; i >= 0; i--) {
      sum += mix16(data, from + 16 * i, 32 * i) + mix16(data, from + length - 16 * (i + 1), 32 * i + 16);
    }
    return avalanche(sum);
  }

  private static long middle64(byte[] data, int from, int length) {
    long sum = length * PRIME64_1;
    for (int i = 0; i < 8; i++) sum += mix16(data, from + 16 * i, 16 * i);
    sum = avalanche(sum);
    for (int i = 8; i < length / 16; i++) sum += mix16(data, from + 16 * i, 16 * (i - 8) + 3);
    return avalanche(sum + mix16(data, from + length - 16, 136 - 17));
  }

  /** Returns the XXH3-128 of a range of at least 129 bytes as 32 hexadecimal digits. */
  public static String hex128(byte[] data, int from, int length) {
    if (length <= MIDDLE_MIN) throw new IllegalArgumentException(length + " bytes");
    if (length <= MIDDLE_MAX) return middle128(data, from, length);
    long[] sums = accumulate(data, from, length);
    return hex(merge(sums, SECRET.length - STRIPE - 11, ~(length * PRIME64_2)), merge(sums, 11, length * PRIME64_1));
  }

  private static String hex(long high, long low) {
    return String.format("%016x%016x", high, low);
  }

  private static String middle128(byte[] data, int from, int length) {
    long[] sums = {length * PRIME64_1, 0};
    int rounds = length / 32;
    for (int i = 0; i < 4; i++) mix32(sums, data, from + 32 * i, from + 32 * i + 16, 32 * i);
    sums[0] = avalanche(sums[0]);
    sums[1] = avalanche(sums[1]);
    for (int i = 4; i < rounds; i++) mix32(sums, data, from + 32 * i, from + 32 * i + 16, 3 + 32 * (i - 4));
    mix32(sums, data, from + length - 16, from + length - 32, 136 - 17 - 16);
    long high = sums[0] * PRIME64_1 + sums[1] * PRIME64_4 + length * PRIME64_2;
    return hex(-avalanche(high), avalanche(sums[0] + sums[1]));
  }

  private static void mix32(long[] sums, byte[] data, int first, int second, int secret) {
    sums[0] += mix16(data, first, secret);
    sums[0] ^= longAt(data, second) + longAt(data, second + 8);
    sums[1] += mix16(data, second, secret + 16);
    sums[1] ^= longAt(data, first) + longAt(data, first + 8);
  }

  private static long[] accumulate(byte[] data, int from, int length) {
    long[] sums = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    int stripes = (length - 1) / STRIPE;
    for (int i = 0; i < stripes; i++) {
      int inBlock = i % STRIPES_OF_BLOCK;
      addStripe(sums, data, from + STRIPE * i, 8 * inBlock);
      if (inBlock == STRIPES_OF_BLOCK - 1) scramble(sums);
    }
    addStripe(sums, data, from + length - STRIPE, SECRET.length - STRIPE - 7);
    return sums;
  }

  private static void addStripe(long[] sums, byte[] data, int from, int secret) {
    for (int i = 0; i < 8; i++) {
      long value = longAt(data, from + 8 * i);
      long keyed = value ^ longAt(SECRET, secret + 8 * i);
      sums[i ^ 1] += value;
      sums[i] += (keyed & 0xFFFFFFFFL) * (keyed >>> 32);
    }
  }

  private static void scramble(long[] sums) {
    for (int i = 0; i < 8; i++) {
      sums[i] = (sums[i] ^ sums[i] >>> 47 ^ longAt(SECRET, SECRET.length - STRIPE + 8 * i)) * PRIME32_1;
    }
  }

  private static long merge(long[] sums, int secret, long start) {
    for (int i = 0; i < 4; i++) {
      start += foldMultiply(sums[2 * i] ^ longAt(SECRET, secret + 16 * i),
          sums[2 * i + 1] ^ longAt(SECRET, secret + 16 * i + 8));
    }
    return avalanche(start);
  }
}
