package io.streamhouse.spark.realtime;

import java.io.IOException;

/** The commit records after a reader's position, as they arrive. Each call must ask for the same number or the next. */
interface LogTail extends AutoCloseable {
  /** Returns whether there is a record with this number. */
  boolean hasRecord(long number) throws IOException;

  /** Returns the record, or null if it cannot be read here and Python must decide about it. */
  CommitRecord getRecord(long number) throws IOException;

  /** Waits some milliseconds for new records. */
  void awaitRecord();

  @Override
  void close();
}
