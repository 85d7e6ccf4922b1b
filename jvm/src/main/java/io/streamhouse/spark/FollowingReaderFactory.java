package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
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

/** Makes the readers of the tasks that follow a log. */
final class FollowingReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final StructType schema;
  private final String batch;

  /** Settings of the file system that reaches the log, secrets among them; null for a log on the disk. */
  private final SerializableConfiguration settings;

  /** Takes a name of the batch, which no other one has. */
  FollowingReaderFactory(StructType schema, String batch, Configuration settings) {
    this.schema = schema;
    this.batch = batch;
    this.settings = settings == null ? null : new SerializableConfiguration(settings);
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    JsonNode task = JsonTree.parse(((FollowedBuckets) partition).described);
    String folder = task.get("folder").asText();
    String uuid = task.get("uuid").asText();
    if (settings == null) {
      LogFiles files = new LocalLogFiles(Path.of(folder));
      return new FollowingReader(task, schema, files, new LocalLogTail(files, uuid));
    }
    LogFiles files = reached(folder);
    LogTail tail = PolledLogTail.of(batch, files, uuid, task.get("next").asLong());
    try {
      return new FollowingReader(task, schema, files, tail);
    } catch (RuntimeException error) {
      tail.close();
      throw error;
    }
  }

  private LogFiles reached(String folder) {
    try {
      return StoreLogFiles.of(folder, settings.value());
    } catch (IOException unreachable) {
      throw new UncheckedIOException(unreachable);
    }
  }
}
