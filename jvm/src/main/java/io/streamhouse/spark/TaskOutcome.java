package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.executor.OutputMetrics;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** The outcome of a task that Python runs: the one row of its partition. Spark's pages show what it wrote. */
final class TaskOutcome implements Function<InputPartition, String> {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory readers;

  TaskOutcome(PartitionReaderFactory readers) {
    this.readers = readers;
  }

  @Override
  public String call(InputPartition partition) {
    return Errors.plainly(() -> outcome(partition));
  }

  private String outcome(InputPartition partition) throws Exception {
    try (PartitionReader<InternalRow> rows = readers.createReader(partition)) {
      if (!rows.next()) throw new IllegalStateException("a task of Python ended without an outcome");
      String text = new String(rows.get().getBinary(0), StandardCharsets.UTF_8);
      if (rows.next()) throw new IllegalStateException("a task of Python has two outcomes");
      JsonNode outcome = JsonTree.parse(text);
      OutputMetrics written = TaskContext.get().taskMetrics().outputMetrics();
      written.setRecordsWritten(outcome.get("rows").asLong());
      written.setBytesWritten(outcome.get("bytes").asLong());
      return text;
    }
  }
}
