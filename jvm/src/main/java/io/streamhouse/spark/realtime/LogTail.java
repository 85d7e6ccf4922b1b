package io.streamhouse.spark.realtime;

import java.io.IOException;

/** The records of a log behind the position of a reader, as they come. Asked with numbers that ascend by one. */
interface LogTail extends AutoCloseable {
  /** Whether there is anything at the number. */
  boolean hasRecord(long number) throws IOException;

  /** The record that is there; null for one that cannot be read here, which Python decides about. */
  CommitRecord getRecord(long number) throws IOException;

  /** Waits for news, some milliseconds at most. */
  void awaitRecord();

  @Override
  void close();
}
