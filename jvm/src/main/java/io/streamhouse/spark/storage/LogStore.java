package io.streamhouse.spark.storage;

import java.io.IOException;

/** The files of one table's log, named relative to its folder. Files are immutable. */
public interface LogStore {
  /** Returns the contents of a file, or null if it does not exist. */
  byte[] read(String name) throws IOException;

  /**
   * Reads ranges of a file, each with its start and end, or returns null if the file does not exist. {@code bytes} is
   * the size from the commit record. It must match if {@code isExact}, and is a lower bound otherwise.
   */
  byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException;

  /** A read that blocks until its result is available. */
  interface Read<T> {
    T get() throws IOException;
  }

  /** Starts a read in the background if reads are slow, otherwise returns null. The returned read throws the errors. */
  default <T> Read<T> prefetch(Read<T> read) {
    return null;
  }

  /** Returns a file's path as error messages show it. */
  String displayPath(String name);
}
