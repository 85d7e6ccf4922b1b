package io.streamhouse.spark.write;

import io.streamhouse.spark.realtime.RealTimeMode;
import io.streamhouse.spark.rpc.StreamhouseSource;
import java.util.Set;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.streaming.OutputMode;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The table of {@code format("streamhouse")} that a stream appends to, and its write. It wraps the table of Python's
 * data source.
 */
public final class StreamWriteTable implements SupportsWrite, WriteBuilder, Write {
  private final SupportsWrite source;
  private final LogicalWriteInfo info;

  private StreamWriteTable(SupportsWrite source, LogicalWriteInfo info) {
    this.source = source;
    this.info = info;
  }

  /** Replaces Python's table in the batch of an appending stream. Returns any other batch unchanged. */
  public static <T extends TreeNode<?>> T replaceIn(T batch) {
    boolean appends = CollectionConverters.asJava(batch.productIterator().toSeq()).contains(OutputMode.Append());
    return appends ? replaceTables(batch) : batch;
  }

  /** Replaces the table itself, which Spark before 4.2 uses, or its relation. */
  @SuppressWarnings("unchecked")
  private static <T extends TreeNode<?>> T replaceTables(T node) {
    boolean isChanged = false;
    Object[] parts = CollectionConverters.asJava(node.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      Object part = parts[i];
      if (part instanceof DataSourceV2Relation) parts[i] = replaceTables((DataSourceV2Relation) part);
      if (StreamhouseSource.isTable(part)) parts[i] = new StreamWriteTable((SupportsWrite) part, null);
      isChanged |= parts[i] != part;
    }
    return isChanged ? (T) node.makeCopy(parts) : node;
  }

  @Override
  public String name() {
    return source.name();
  }

  @Override
  public Column[] columns() {
    return source.columns();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return source.capabilities();
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new StreamWriteTable(source, info);
  }

  @Override
  public Write build() {
    return this;
  }

  @Override
  public String description() {
    return name();
  }

  @Override
  public StreamingWrite toStreaming() {
    RealTimeMode.rejectSink(name());
    return new PythonWrite(source.newWriteBuilder(info).build().toStreaming(), info, "", counts -> {});
  }
}
