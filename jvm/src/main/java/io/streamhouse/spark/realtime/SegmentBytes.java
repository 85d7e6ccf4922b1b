package io.streamhouse.spark.realtime;

/** Verified bytes of a segment and their position in it. */
final class SegmentBytes {
  final byte[] bytes;
  private final long start;

  SegmentBytes(byte[] bytes, long start) {
    this.bytes = bytes;
    this.start = start;
  }

  /** Returns the index in {@code bytes} of a position of the segment. */
  int indexOf(long position) {
    return Math.toIntExact(position - start);
  }

  boolean containsUpTo(long end) {
    return indexOf(end) <= bytes.length;
  }
}
