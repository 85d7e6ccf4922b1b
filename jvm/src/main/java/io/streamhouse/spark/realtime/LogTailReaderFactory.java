package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LocalLogStore;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.storage.RemoteLogStore;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.SerializableConfiguration;

/** Creates the readers of tasks that follow a log. */
final class LogTailReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final StructType schema;
  private final String batch;

  /** Settings of the file system, which include secrets. Null for a log on the local disk. */
  private final SerializableConfiguration logConfiguration;

  /** Creates a factory. {@code batch} must be unique. */
  LogTailReaderFactory(StructType schema, String batch, Configuration logConfiguration) {
    this.schema = schema;
    this.batch = batch;
    this.logConfiguration = logConfiguration == null ? null : new SerializableConfiguration(logConfiguration);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    JsonNode task = Json.parse(((TailedBuckets) partition).task);
    String folder = task.get("folder").asText();
    String uuid = task.get("uuid").asText();
    if (logConfiguration == null) {
      LogStore store = new LocalLogStore(Path.of(folder));
      return new LogTailReader(task, schema, store, new LocalLogTail(store, uuid));
    }
    LogStore store = openRemoteLog(folder);
    LogTail tail = PollingLogTail.of(batch, store, uuid, task.get("next").asLong());
    try {
      return new LogTailReader(task, schema, store, tail);
    } catch (RuntimeException error) {
      tail.close();
      throw error;
    }
  }

  private LogStore openRemoteLog(String folder) {
    try {
      return RemoteLogStore.of(folder, logConfiguration.value());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
