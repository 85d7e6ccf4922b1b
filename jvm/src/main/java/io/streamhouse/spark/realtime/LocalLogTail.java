package io.streamhouse.spark.realtime;

import io.streamhouse.spark.storage.LogStore;
import java.io.IOException;
import java.util.concurrent.locks.LockSupport;

/** Tails a log on a local disk for one reader by reading the next record's file, which is cheap. */
final class LocalLogTail implements LogTail {
  private static final long POLL_INTERVAL_NS = 500_000;

  private final LogStore store;
  private final String uuid;
  private byte[] recordBytes;

  LocalLogTail(LogStore store, String uuid) {
    this.store = store;
    this.uuid = uuid;
  }

  @Override
  public boolean hasRecord(long number) throws IOException {
    recordBytes = store.read(CommitRecord.fileName(number));
    return recordBytes != null;
  }

  @Override
  public CommitRecord getRecord(long number) throws IOException {
    return CommitRecord.decode(recordBytes, store, uuid, number);
  }

  @Override
  public void awaitRecord() {
    LockSupport.parkNanos(POLL_INTERVAL_NS);
  }

  @Override
  public void close() {}
}
