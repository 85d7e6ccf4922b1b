package io.streamhouse.spark.write;

import java.util.ArrayList;
import java.util.List;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * The changes of a row-level operation. Each task writes them in chunks, because Python's writer takes an iterator and
 * Spark passes on rows one by one.
 */
final class RowDeltaWrite implements DeltaWrite, DeltaBatchWrite, RequiresBucketDistribution {
  private final WritableTable table;
  private final Write displayWrite;
  private final Supplier<Write> writeSupplier;
  private final StructType written;
  private BatchWrite batch;

  /**
   * Creates a write. The Python write is created when the statement runs, because it depends on what else the statement
   * reads. {@code displayWrite} is shown until then.
   */
  RowDeltaWrite(WritableTable table, Write displayWrite, Supplier<Write> writeSupplier, StructType written) {
    this.table = table;
    this.displayWrite = displayWrite;
    this.writeSupplier = writeSupplier;
    this.written = written;
  }

  @Override
  public WritableTable table() {
    return table;
  }

  @Override
  public boolean isClusteredByBucket() {
    return table.hasPrimaryKey() && table.canClusterByBucket(written);
  }

  @Override
  public String description() {
    return displayWrite.description();
  }

  @Override
  public DeltaBatchWrite toBatch() {
    batch = new PythonWrite(writeSupplier.get().toBatch());
    return this;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    DataWriterFactory pythonWriters = batch.createBatchWriterFactory(info);
    StructType schema = written; // captured in place of this write, which is not serializable
    int columns = table.schema.length();
    return (partition, task) -> new RowDeltaWriter(pythonWriters, partition, task, schema, columns);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    batch.commit(flatten(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    batch.abort(flatten(messages));
  }

  private static WriterCommitMessage[] flatten(WriterCommitMessage[] messages) {
    List<WriterCommitMessage> flattened = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (message == null) flattened.add(null);
      else flattened.addAll(((ChunkCommitMessages) message).chunks);
    }
    return flattened.toArray(new WriterCommitMessage[0]);
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return displayWrite.supportedCustomMetrics();
  }
}
