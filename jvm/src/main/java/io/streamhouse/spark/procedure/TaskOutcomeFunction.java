package io.streamhouse.spark.procedure;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.nio.charset.StandardCharsets;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.Function;
import org.apache.spark.executor.OutputMetrics;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/**
 * Runs one task in a Python worker and returns its outcome, the only row of the partition. The task's output metrics
 * show what it wrote.
 */
final class TaskOutcomeFunction implements Function<InputPartition, String> {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory readers;

  TaskOutcomeFunction(PartitionReaderFactory readers) {
    this.readers = readers;
  }

  @Override
  public String call(InputPartition partition) {
    return SparkErrors.unwrapPythonErrors(() -> readOutcome(partition));
  }

  private String readOutcome(InputPartition partition) throws Exception {
    try (PartitionReader<InternalRow> rows = readers.createReader(partition)) {
      if (!rows.next()) throw new IllegalStateException("a task of Python ended without an outcome");
      String text = new String(rows.get().getBinary(0), StandardCharsets.UTF_8);
      if (rows.next()) throw new IllegalStateException("a task of Python has two outcomes");
      JsonNode outcome = Json.parse(text);
      OutputMetrics written = TaskContext.get().taskMetrics().outputMetrics();
      written.setRecordsWritten(outcome.get("rows").asLong());
      written.setBytesWritten(outcome.get("bytes").asLong());
      return text;
    }
  }
}
