package io.streamhouse.spark.realtime;

import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.SparkErrors;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * Tails a log in an object store with one polling thread for all tasks of a batch in this process.
 *
 *
 * <p>A poll requests the next record, which costs money. While records arrive, the thread polls without a pause, then
 * every 20 ms, then ever more rarely, down to once in two seconds. It prefetches some records. A reader that is far
 * behind reads for itself. Records are not shared between batches, because Python checks at the start of each batch
 * whether the log is still the same.
 */
final class PollingLogTail implements LogTail, Runnable {
  static final long INTERVAL_MIN_NS = 20_000_000;
  static final long INTERVAL_MAX_NS = 2_000_000_000L;

  /** The pause is the time since the last record divided by this. */
  static final long QUIET_SHARE = 16;

  private static final int PREFETCH_RECORDS = 16;
  private static final int CACHED_RECORDS_MAX = 64;
  private static final long WAIT_MS = 20;

  private static final Map<String, PollingLogTail> RUNNING = new HashMap<>();

  /** When the last record of each log arrived, so that a new batch polls as rarely as the one before. */
  private static final Map<String, Long> LAST_RECORD_NS = new HashMap<>();

  private final String key;
  private final LogStore store;
  private final String uuid;
  private final TreeMap<Long, CommitRecord> records = new TreeMap<>();
  private int readers;
  private long next;
  private long requested;
  private volatile long lastRecordNs;
  private Throwable failure;
  private Thread thread;

  private PollingLogTail(String key, LogStore store, String uuid, long next) {
    this.key = key;
    this.store = store;
    this.uuid = uuid;
    this.next = next;
    requested = next;
    lastRecordNs = LAST_RECORD_NS.computeIfAbsent(uuid, id -> System.nanoTime());
  }

  /** Returns the tail of a batch that starts at record {@code next}, and starts its thread. */
  static PollingLogTail of(String batch, LogStore store, String uuid, long next) {
    synchronized (RUNNING) {
      String key = batch + " " + uuid + " " + next;
      PollingLogTail tail = RUNNING.computeIfAbsent(key, k -> new PollingLogTail(key, store, uuid, next));
      tail.readers++;
      if (tail.thread == null) {
        tail.thread = new Thread(tail, "streamhouse-follow-" + uuid);
        tail.thread.setDaemon(true);
        tail.thread.start();
      }
      return tail;
    }
  }

  @Override
  public void close() {
    synchronized (RUNNING) {
      if (--readers > 0) return;
      RUNNING.remove(key);
      LAST_RECORD_NS.put(uuid, lastRecordNs);
    }
    thread.interrupt();
  }

  @Override
  public void run() {
    try {
      while (true) {
        long number = awaitDemand();
        long sinceNs = System.nanoTime();
        byte[] bytes = store.read(CommitRecord.fileName(number));
        CommitRecord record = bytes == null ? null : CommitRecord.decode(bytes, store, uuid, number);
        if (bytes != null) add(number, record);
        if (bytes != null && record == null) return; // Python reports what is wrong with it
        if (bytes == null) pause(sinceNs);
      }
    } catch (InterruptedException error) {
      // the last reader has closed the tail
    } catch (Throwable error) { // even a missing class: readers rethrow it
      fail(error);
    }
  }

  /** Waits while the readers are far behind. Returns the number of the record to request next. */
  private synchronized long awaitDemand() throws InterruptedException {
    while (next > requested + PREFETCH_RECORDS) wait();
    return next;
  }

  /** Waits until the next poll is due, measured from the start of the last one. */
  private void pause(long sinceNs) throws InterruptedException {
    long restNs = sinceNs + pollIntervalNs(System.nanoTime() - lastRecordNs) - System.nanoTime();
    if (restNs > 0) Thread.sleep(restNs / 1_000_000, (int) (restNs % 1_000_000));
  }

  /** Returns the time between two polls, given the time since the last record. */
  static long pollIntervalNs(long quietNs) {
    return Math.min(INTERVAL_MAX_NS, Math.max(INTERVAL_MIN_NS, quietNs / QUIET_SHARE));
  }

  private synchronized void add(long number, CommitRecord record) {
    records.put(number, record);
    if (records.size() > CACHED_RECORDS_MAX) records.pollFirstEntry();
    next = number + 1;
    lastRecordNs = System.nanoTime();
    notifyAll();
  }

  private synchronized void fail(Throwable error) {
    failure = error;
    notifyAll();
  }

  @Override
  public synchronized boolean hasRecord(long number) {
    if (number > requested) {
      requested = number;
      notifyAll();
    }
    if (number < next) return true;
    if (failure != null) throw SparkErrors.analysisException(failure.getMessage(), failure);
    return false;
  }

  @Override
  public CommitRecord getRecord(long number) throws IOException {
    synchronized (this) {
      if (records.containsKey(number)) return records.get(number);
    }
    return CommitRecord.decode(store.read(CommitRecord.fileName(number)), store, uuid, number);
  }

  @Override
  public synchronized void awaitRecord() {
    try {
      wait(WAIT_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt(); // the reader checks the flag
    }
  }
}
