package io.streamhouse.spark;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** A task's message to the driver, with what the task counted: a stream's progress tells of it. */
final class CountedMessage implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;

  /** Python's message; null where it has none. */
  final WriterCommitMessage inner;

  private final TreeMap<String, Long> counts;

  CountedMessage(WriterCommitMessage inner, Map<String, Long> counts) {
    this.inner = inner;
    this.counts = new TreeMap<>(counts);
  }

  /** The sums over all tasks of a batch, as Spark's progress takes them. */
  static Map<String, String> sums(WriterCommitMessage[] messages) {
    TreeMap<String, Long> sums = new TreeMap<>();
    for (WriterCommitMessage each : messages) {
      if (each instanceof CountedMessage) ((CountedMessage) each).counts.forEach((k, v) -> sums.merge(k, v, Long::sum));
    }
    Map<String, String> found = new TreeMap<>();
    sums.forEach((name, sum) -> found.put(name, Long.toString(sum)));
    return found;
  }

  /** The messages as Python knows them. */
  static WriterCommitMessage[] plain(WriterCommitMessage[] messages) {
    WriterCommitMessage[] found = messages.clone();
    for (int i = 0; i < found.length; i++) {
      if (found[i] instanceof CountedMessage) found[i] = ((CountedMessage) found[i]).inner;
    }
    return found;
  }
}
