package io.streamhouse.spark.realtime;

/** Some verified bytes of a segment, and the position in it of the first one. */
final class SegmentBytes {
  final byte[] bytes;
  private final long start;

  SegmentBytes(byte[] bytes, long start) {
    this.bytes = bytes;
    this.start = start;
  }

  /** The index of the byte at a position of the segment. */
  int indexOf(long position) {
    return Math.toIntExact(position - start);
  }

  boolean containsUpTo(long end) {
    return indexOf(end) <= bytes.length;
  }
}
