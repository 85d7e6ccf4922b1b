package io.streamhouse.spark;

/** Some verified bytes of a segment, and the position in it of the first one. */
final class SegmentPiece {
  final byte[] bytes;
  private final long start;

  SegmentPiece(byte[] bytes, long start) {
    this.bytes = bytes;
    this.start = start;
  }

  /** The index of the byte at a position of the segment. */
  int at(long position) {
    return Math.toIntExact(position - start);
  }

  boolean has(long end) {
    return at(end) <= bytes.length;
  }
}
