package io.streamhouse.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * A log in a store, which one thread looks at for all tasks of a batch that run in this process.
 *
 * <p>A look is a request for the next record, that somebody pays for. While records come there are looks without a
 * pause, then each 20 ms, and ever fewer the longer no record came, down to one in two seconds. The thread reads some
 * records ahead of the readers, and a reader that is far behind reads for itself. Records are never shared between
 * batches: at the beginning of each, Python has looked whether the log is still the one that it was.
 */
final class PolledLogTail implements LogTail, Runnable {
  static final long BUSY_NS = 20_000_000;
  static final long IDLE_NS = 2_000_000_000L;

  /** Part of the time without news that passes until the next look. */
  static final long SHARE = 16;

  private static final int AHEAD = 16;
  private static final int KEPT = 64;
  private static final long WAIT_MS = 20;

  private static final Map<String, PolledLogTail> RUNNING = new HashMap<>();

  /** When the newest record of each log was found: a new batch goes on as seldom as the one before ended. */
  private static final Map<String, Long> NEWS_NS = new HashMap<>();

  private final String key;
  private final LogFiles files;
  private final String uuid;
  private final TreeMap<Long, CommitRecord> kept = new TreeMap<>();
  private int readers;
  private long next;
  private long asked;
  private volatile long newsNs;
  private Throwable failure;
  private Thread thread;

  private PolledLogTail(String key, LogFiles files, String uuid, long next) {
    this.key = key;
    this.files = files;
    this.uuid = uuid;
    this.next = next;
    asked = next;
    newsNs = NEWS_NS.computeIfAbsent(uuid, unknown -> System.nanoTime());
  }

  /** The one of a batch in this process, from the record on with which the batch begins. */
  static PolledLogTail of(String batch, LogFiles files, String uuid, long next) {
    synchronized (RUNNING) {
      String key = batch + " " + uuid + " " + next;
      PolledLogTail found = RUNNING.computeIfAbsent(key, none -> new PolledLogTail(key, files, uuid, next));
      found.readers++;
      if (found.thread == null) {
        found.thread = new Thread(found, "streamhouse-follow-" + uuid);
        found.thread.setDaemon(true);
        found.thread.start();
      }
      return found;
    }
  }

  @Override
  public void close() {
    synchronized (RUNNING) {
      if (--readers > 0) return;
      RUNNING.remove(key);
      NEWS_NS.put(uuid, newsNs);
    }
    thread.interrupt();
  }

  @Override
  public void run() {
    try {
      while (true) {
        long number = waitForTurn();
        long sinceNs = System.nanoTime();
        byte[] bytes = files.read(CommitRecord.name(number));
        CommitRecord record = bytes == null ? null : CommitRecord.of(bytes, files, uuid, number);
        if (bytes != null) take(number, record);
        if (bytes != null && record == null) return; // Python says what it is
        if (bytes == null) pause(sinceNs);
      }
    } catch (InterruptedException closed) {
      // nobody reads any more
    } catch (Throwable error) { // also of a class that is missing: the reader says it
      fail(error);
    }
  }

  /** Waits while the readers are far behind; the number of the record that is looked for then. */
  private synchronized long waitForTurn() throws InterruptedException {
    while (next > asked + AHEAD) wait();
    return next;
  }

  /** Waits until another look is due, which is some time behind the beginning of the one before. */
  private void pause(long sinceNs) throws InterruptedException {
    long restNs = sinceNs + intervalNs(System.nanoTime() - newsNs) - System.nanoTime();
    if (restNs > 0) Thread.sleep(restNs / 1_000_000, (int) (restNs % 1_000_000));
  }

  /** The time between two looks, when the newest record came so long ago. */
  static long intervalNs(long quietNs) {
    return Math.min(IDLE_NS, Math.max(BUSY_NS, quietNs / SHARE));
  }

  private synchronized void take(long number, CommitRecord record) {
    kept.put(number, record);
    if (kept.size() > KEPT) kept.pollFirstEntry();
    next = number + 1;
    newsNs = System.nanoTime();
    notifyAll();
  }

  private synchronized void fail(Throwable error) {
    failure = error;
    notifyAll();
  }

  @Override
  public synchronized boolean has(long number) {
    if (number > asked) {
      asked = number;
      notifyAll();
    }
    if (number < next) return true;
    if (failure != null) throw Errors.analysis(failure.getMessage(), failure);
    return false;
  }

  @Override
  public CommitRecord get(long number) throws IOException {
    synchronized (this) {
      if (kept.containsKey(number)) return kept.get(number);
    }
    return CommitRecord.of(files.read(CommitRecord.name(number)), files, uuid, number);
  }

  @Override
  public synchronized void await() {
    try {
      wait(WAIT_MS);
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt(); // the reader looks at it
    }
  }
}
