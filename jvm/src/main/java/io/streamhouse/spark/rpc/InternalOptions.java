package io.streamhouse.spark.rpc;

/** Options that Java and Python pass to each other and that users never set. {@code jvm/protocol.json} lists them. */
public final class InternalOptions {
  /** The operation of a call. */
  static final String CALL = "__streamhouse_call";

  static final String ARGUMENTS = "__streamhouse_args";

  /** The UUID of the loaded table, in addition to its name in {@code path}. */
  public static final String UUID = "__streamhouse_uuid";

  /** The table version that an UPDATE, DELETE or MERGE read, for conflict detection by its write. */
  public static final String READ = "__streamhouse_read";

  /** The rows of that version that the statement may have read, for the same write. */
  public static final String SCOPE = "__streamhouse_scope";

  /** Set for a write to a staged table, which has no name yet. */
  public static final String STAGED = "__streamhouse_staged";

  /** The part of the table that a write overwrites. */
  public static final String REPLACED = "__streamhouse_replaced";

  /** Set for a write whose tasks have all rows of their buckets. */
  public static final String CLUSTERED = "__streamhouse_clustered";

  /**
   * Set for a stream with pushdown. It is also the key of the pushdown in a batch's start offset. Checkpoints never
   * contain it.
   */
  public static final String NEED = "__streamhouse_need";

  /** The key of the lag at the end of the latest offset that such a stream reports. */
  public static final String LAG = "__streamhouse_lag";

  /** Set for a real-time stream into a table: the ids of the query and of the table that it reads. */
  public static final String REAL_TIME = "__streamhouse_real_time";

  /** A task property that Python reads: the task writes its changes in several chunks. */
  public static final String PART_PROPERTY = "streamhouse.part";

  private InternalOptions() {}
}
