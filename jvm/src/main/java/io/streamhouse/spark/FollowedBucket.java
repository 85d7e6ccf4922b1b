package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;

/** One bucket that a task follows: the offset of the next row, and offsets behind it whose rows are deleted. */
final class FollowedBucket {
  final int bucket;
  final long firstRowId;
  long offset;
  private final JsonNode starts;
  private final JsonNode ends;
  private int run;

  FollowedBucket(JsonNode described) {
    bucket = described.get("bucket").asInt();
    offset = described.get("offset").asLong();
    firstRowId = described.get("row_id").asLong();
    starts = described.get("deleted").get(0);
    ends = described.get("deleted").get(1);
  }

  /** Whether the row is to be handed out. Asked with ascending offsets. */
  boolean wants(long row) {
    if (row < offset) return false;
    while (run < ends.size() && ends.get(run).asLong() <= row) run++;
    return run == ends.size() || starts.get(run).asLong() > row;
  }
}
