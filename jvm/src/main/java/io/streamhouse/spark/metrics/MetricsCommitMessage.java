package io.streamhouse.spark.metrics;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The commit message of a task together with its counters, which the progress of a stream reports. */
public final class MetricsCommitMessage implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;

  /** The message of Python's writer, or null if there is none. */
  final WriterCommitMessage pythonMessage;

  private final TreeMap<String, Long> counts;

  public MetricsCommitMessage(WriterCommitMessage pythonMessage, Map<String, Long> counts) {
    this.pythonMessage = pythonMessage;
    this.counts = new TreeMap<>(counts);
  }

  /** Returns the sums over all tasks of a batch, in the form of Spark's progress. */
  public static Map<String, String> sum(WriterCommitMessage[] messages) {
    TreeMap<String, Long> sums = new TreeMap<>();
    for (WriterCommitMessage message : messages) {
      if (message instanceof MetricsCommitMessage) {
        ((MetricsCommitMessage) message).counts.forEach((k, v) -> sums.merge(k, v, Long::sum));
      }
    }
    Map<String, String> metrics = new TreeMap<>();
    sums.forEach((name, sum) -> metrics.put(name, Long.toString(sum)));
    return metrics;
  }

  /** Returns the messages of Python's writer. */
  public static WriterCommitMessage[] unwrap(WriterCommitMessage[] messages) {
    WriterCommitMessage[] unwrapped = messages.clone();
    for (int i = 0; i < unwrapped.length; i++) {
      if (unwrapped[i] instanceof MetricsCommitMessage) {
        unwrapped[i] = ((MetricsCommitMessage) unwrapped[i]).pythonMessage;
      }
    }
    return unwrapped;
  }
}
