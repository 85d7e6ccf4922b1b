package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;

/** A bucket that a task follows: the next offset, and the later offsets of deleted rows. */
final class TailedBucket {
  final int bucket;
  final long firstRowId;
  long offset;
  private final JsonNode deletedStarts;
  private final JsonNode deletedEnds;
  private int deletedRun;

  TailedBucket(JsonNode bucketJson) {
    bucket = bucketJson.get("bucket").asInt();
    offset = bucketJson.get("offset").asLong();
    firstRowId = bucketJson.get("row_id").asLong();
    deletedStarts = bucketJson.get("deleted").get(0);
    deletedEnds = bucketJson.get("deleted").get(1);
  }

  /** Returns whether to emit a row. Offsets must ascend from call to call. */
  boolean shouldEmit(long rowOffset) {
    if (rowOffset < offset) return false;
    while (deletedRun < deletedEnds.size() && deletedEnds.get(deletedRun).asLong() <= rowOffset) deletedRun++;
    return deletedRun == deletedEnds.size() || deletedStarts.get(deletedRun).asLong() > rowOffset;
  }
}
