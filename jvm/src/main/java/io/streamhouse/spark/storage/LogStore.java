package io.streamhouse.spark.storage;

import java.io.IOException;

/** The files of one table's log, by their names below its folder. Files are never changed once they are there. */
public interface LogStore {
  /** All bytes of a file; null where it is not there. */
  byte[] read(String name) throws IOException;

  /**
   * The bytes of ranges of a file, each given by its begin and its end; null where the file is not there. The commit
   * record says how many bytes it has: exactly or at least so many.
   */
  byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException;

  /** A read that waits for its answer. */
  interface Read<T> {
    T get() throws IOException;
  }

  /** Begins a read beside others, where reads take long; null elsewhere. Errors come where the answer is asked for. */
  default <T> Read<T> prefetch(Read<T> read) {
    return null;
  }

  /** A file as errors name it. */
  String displayPath(String name);
}
