package io.streamhouse.spark;

/** Options that Java and Python pass to each other and no user gives. Python's are in {@code internal_options.py}. */
final class InternalOptions {
  /** The operation of a call. */
  static final String CALL = "__streamhouse_call";

  static final String ARGUMENTS = "__streamhouse_args";

  /** The table that was loaded, beside its name in {@code path}. */
  static final String UUID = "__streamhouse_uuid";

  /** The state that an UPDATE, DELETE or MERGE read, for its write. */
  static final String READ = "__streamhouse_read";

  /** The rows of that state that it may have read, for the same write. */
  static final String SCOPE = "__streamhouse_scope";

  /** The part of the table that a write replaces. */
  static final String REPLACED = "__streamhouse_replaced";

  /** Set for a write whose tasks have all rows of their buckets. */
  static final String CLUSTERED = "__streamhouse_clustered";

  /** A property of a task that Python reads: its changes come in several chunks. */
  static final String PART_PROPERTY = "streamhouse.part";

  private InternalOptions() {}
}
