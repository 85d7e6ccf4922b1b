package io.streamhouse.spark.write;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.rpc.ValueJson;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsAtomicPartitionManagement;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A table whose partitions can be listed, dropped and truncated. */
public class PartitionedTable extends WritableTable implements SupportsAtomicPartitionManagement {
  public PartitionedTable(PythonCatalog catalog, Identifier identifier, JsonNode metadata) {
    super(catalog, identifier, metadata);
  }

  @Override
  public StructType partitionSchema() {
    StructType partitionSchema = new StructType();
    for (String column : Json.toList(metadata.get("partition_columns"))) {
      partitionSchema = partitionSchema.add(schema.apply(column));
    }
    return partitionSchema;
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow values) {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier);
    ArrayNode namesNode = arguments.putArray("names");
    ArrayNode valuesNode = arguments.putArray("values");
    for (int i = 0; i < names.length; i++) {
      DataType type = schema.apply(names[i]).dataType();
      namesNode.add(names[i]);
      valuesNode.add(ValueJson.of(values.isNullAt(i) ? null : values.get(i, type)));
    }
    List<InternalRow> partitions = new ArrayList<>();
    for (JsonNode partition : python.call("partition_values", arguments).get("partitions")) {
      partitions.add(ValueJson.readRow(partition, partitionSchema()));
    }
    return partitions.toArray(new InternalRow[0]);
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return Map.of();
  }

  @Override
  public void createPartitions(InternalRow[] partitions, Map<String, String>[] properties) {
    throw SparkErrors.analysisException(
        "ADD PARTITION is not supported; insert rows, which create their partitions");
  }

  @Override
  public boolean dropPartitions(InternalRow[] partitions) {
    python.call("drop_partitions", partitionArguments(partitions));
    return true;
  }

  /**
   * Implements TRUNCATE TABLE … PARTITION. The partition no longer exists afterwards. A missing one is already empty.
   */
  @Override
  public boolean truncatePartitions(InternalRow[] partitions) {
    python.call("truncate_partitions", partitionArguments(partitions));
    return true;
  }

  @Override
  public boolean truncatePartition(InternalRow partition) {
    return truncatePartitions(new InternalRow[] {partition});
  }

  private ObjectNode partitionArguments(InternalRow[] partitions) {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("uuid", id());
    ArrayNode values = arguments.putArray("partitions");
    StructField[] columns = partitionSchema().fields();
    for (InternalRow partition : partitions) {
      ArrayNode row = values.addArray();
      for (int i = 0; i < columns.length; i++) {
        row.add(ValueJson.of(partition.isNullAt(i) ? null : partition.get(i, columns[i].dataType())));
      }
    }
    return arguments;
  }

  @Override
  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw SparkErrors.analysisException("partitions have no properties");
  }
}
