package io.streamhouse.spark.metrics;

import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** A task's message to the driver, with what the task counted: a stream's progress tells of it. */
public final class MetricsCommitMessage implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;

  /** Python's message; null where it has none. */
  final WriterCommitMessage pythonMessage;

  private final TreeMap<String, Long> counts;

  public MetricsCommitMessage(WriterCommitMessage pythonMessage, Map<String, Long> counts) {
    this.pythonMessage = pythonMessage;
    this.counts = new TreeMap<>(counts);
  }

  /** The sums over all tasks of a batch, as Spark's progress takes them. */
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

  /** The messages as Python knows them. */
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
