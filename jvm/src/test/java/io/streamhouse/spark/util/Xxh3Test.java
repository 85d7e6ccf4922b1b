package io.streamhouse.spark.util;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

/** Checksums that Python's xxhash returns for the same bytes, for each class of lengths. */
class Xxh3Test {
  private static final byte[] DATA = new byte[70_000];

  static {
    for (int i = 0; i < DATA.length; i++) DATA[i] = (byte) (i * 31 + (i >>> 5) * 7);
  }

  private static void check(int length, String sum64, String sum128) {
    assertEquals(sum64, String.format("%016x", Xxh3.hash64(DATA, 3, length)), length + " bytes");
    if (!sum128.isEmpty()) assertEquals(sum128, Xxh3.hex128(DATA, 3, length), length + " bytes");
  }

  @Test
  void hashesMatchPythons() {
    check(0, "2d06800538d394c2", "");
    check(1, "dea50e3c9e6bbb39", "");
    check(3, "70ac0606800b1b5a", "");
    check(4, "46d61a340e5988b5", "");
    check(8, "ec06eff0ea270f64", "");
    check(9, "acf9a156934c27e6", "");
    check(16, "07662ec6ae5b0828", "");
    check(17, "779de5833b8aab27", "");
    check(64, "972cdb7a06b0a93d", "");
    check(128, "d99652afd5e69496", "");
    check(129, "40e11a848da638dc", "2dfa677194c6b525e3fcbf4865d6c7d4");
    check(160, "5733284c0b7201a7", "c84dd416e2c452d6c40f80ba17bcd44b");
    check(240, "77e9741009ad595a", "0aa26e24ba5e38adf26d23e442eb9aa0");
    check(241, "03b171ac811f6445", "1f1a3f1a2df2420b03b171ac811f6445");
    check(1024, "425553c98ba0de16", "b3a7e69bde421753425553c98ba0de16");
    check(1025, "b94963c01753fa3d", "5a501e3aabd3324ab94963c01753fa3d");
    check(65536, "1df9b9328e70ee44", "2edfc7a1c6d53aae1df9b9328e70ee44");
    check(65537, "d7cda75df4c4ecf8", "6995231811c30e03d7cda75df4c4ecf8");
  }
}
