package io.streamhouse.spark.realtime;

import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** The offsets that a task has reached, and the last record with rows that it has read. */
final class TailOffsets implements PartitionOffset {
  private static final long serialVersionUID = 1L;

  /** The next offset of each bucket. */
  final TreeMap<Integer, Long> offsets;

  /** Number and attempt of the record, or null if the task has read none. */
  final Long record;

  final String attempt;

  TailOffsets(TreeMap<Integer, Long> offsets, Long record, String attempt) {
    this.offsets = offsets;
    this.record = record;
    this.attempt = attempt;
  }
}
