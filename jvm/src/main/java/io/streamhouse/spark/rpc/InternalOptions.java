package io.streamhouse.spark.rpc;

/** Options that Java and Python pass to each other and no user gives. Python's are in {@code internal_options.py}. */
public final class InternalOptions {
  /** The operation of a call. */
  static final String CALL = "__streamhouse_call";

  static final String ARGUMENTS = "__streamhouse_args";

  /** The table that was loaded, beside its name in {@code path}. */
  public static final String UUID = "__streamhouse_uuid";

  /** The state that an UPDATE, DELETE or MERGE read, for its write. */
  public static final String READ = "__streamhouse_read";

  /** The rows of that state that it may have read, for the same write. */
  public static final String SCOPE = "__streamhouse_scope";

  /** Set for a write to a table that has no name yet. */
  public static final String STAGED = "__streamhouse_staged";

  /** The part of the table that a write replaces. */
  public static final String REPLACED = "__streamhouse_replaced";

  /** Set for a write whose tasks have all rows of their buckets. */
  public static final String CLUSTERED = "__streamhouse_clustered";

  /** Set for a stream that is told what its query needs: by this key, in the start of a batch. No checkpoint has it. */
  public static final String NEED = "__streamhouse_need";

  /** Behind the newest offset that such a stream reports: how far it is behind. */
  public static final String LAG = "__streamhouse_lag";

  /** Set for a stream into a table in real-time mode: ids of the query and of the table that it reads. */
  public static final String REAL_TIME = "__streamhouse_real_time";

  /** A property of a task that Python reads: its changes come in several chunks. */
  public static final String PART_PROPERTY = "streamhouse.part";

  private InternalOptions() {}
}
