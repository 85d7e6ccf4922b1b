package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.LoadedTable;
import io.streamhouse.spark.metrics.MetricsCommitMessage;
import io.streamhouse.spark.metrics.TaskCounters;
import io.streamhouse.spark.realtime.RealTimeWriter;
import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * A stream into a table in real-time mode. Its tasks commit while they run, and the source offsets of the rows tell
 * which are already stored. Update mode, the only one there is, passes rows on one by one.
 */
final class RealTimeWrite implements WriteBuilder, SupportsStreamingUpdateAsAppend, Write, StreamingWrite {
  private static final String BATCH_ID = "streaming.sql.batchId";
  private final WritableTable table;
  private final LogicalWriteInfo info;
  private final LoadedTable source;
  private long batch;

  RealTimeWrite(WritableTable table, LogicalWriteInfo info, LoadedTable source) {
    this.table = table;
    this.info = info;
    this.source = source;
  }

  @Override
  public Write build() {
    return this;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return TaskCounters.writeMetrics();
  }

  @Override
  public StreamingWrite toStreaming() {
    table.checkOptions("writeStream", info.options().asCaseSensitiveMap());
    return this;
  }

  /** Returns the schema of the rows with their source positions in front, as Python takes them. */
  private StructType schemaWithPositions() {
    StructType schema =
        new StructType()
            .add("__bucket", DataTypes.IntegerType, false)
            .add("__begin", DataTypes.LongType, false)
            .add("__end", DataTypes.LongType, false)
            .add("__record", DataTypes.LongType)
            .add("__attempt", DataTypes.StringType);
    for (StructField field : info.schema().fields()) schema = schema.add(field);
    return schema;
  }

  private ObjectNode newRequest() {
    ObjectNode request = Json.object().put("name", table.tableName()).put("uuid", table.id());
    request.put("query", info.queryId()).put("source", source.id()).put("batch", batch);
    request.set("options", Json.object(info.options().asCaseSensitiveMap()));
    return request;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
    int buckets = source.logBucketCount();
    batch = Long.parseLong(SparkSession.active().sparkContext().getLocalProperty(BATCH_ID));
    ObjectNode request = newRequest().put("buckets", buckets).put("source_name", source.tableName());
    JsonNode offsets = table.python.call("begin_real_time_write", request).get("offsets");
    TreeMap<Integer, Long> storedOffsets = new TreeMap<>();
    offsets.properties().forEach(entry ->
        storedOffsets.put(Integer.valueOf(entry.getKey()), entry.getValue().asLong()));
    StructType written = schemaWithPositions();
    Map<String, String> extraOptions = Map.of(InternalOptions.REAL_TIME, info.queryId() + " " + source.id());
    StreamingWrite python = table.newPythonWriteBuilder(info, written, extraOptions).build().toStreaming();
    StreamingDataWriterFactory inner =
        SparkErrors.unwrapPythonErrors(() -> python.createStreamingWriterFactory(physical));
    String name = table.name();
    StructType schema = info.schema();
    return (partition, task, epoch) ->
        new RealTimeWriter(name, schema, written, storedOffsets, () -> inner.createWriter(partition, task, epoch));
  }

  /** Returns false, because each task commits by itself. */
  @Override
  public boolean useCommitCoordinator() {
    return false;
  }

  /** Ends the batch. All rows are stored, and the table must know that before Spark records the end. */
  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    table.python.call("end_real_time_write", newRequest());
    table.recordMetrics(MetricsCommitMessage.sum(messages));
  }

  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {}
}
