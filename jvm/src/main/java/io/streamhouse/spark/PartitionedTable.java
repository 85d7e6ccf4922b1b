package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsAtomicPartitionManagement;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A table whose partitions can be listed and dropped. */
class PartitionedTable extends WritableTable implements SupportsAtomicPartitionManagement {
  PartitionedTable(PythonCatalog catalog, Identifier identifier, JsonNode loaded) {
    super(catalog, identifier, loaded);
  }

  @Override
  public StructType partitionSchema() {
    StructType found = new StructType();
    for (String column : JsonTree.list(loaded.get("partition_columns"))) found = found.add(schema.apply(column));
    return found;
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow values) {
    ObjectNode arguments = PythonCatalog.named(identifier);
    ArrayNode namesNode = arguments.putArray("names");
    ArrayNode valuesNode = arguments.putArray("values");
    for (int i = 0; i < names.length; i++) {
      DataType type = schema.apply(names[i]).dataType();
      namesNode.add(names[i]);
      valuesNode.add(ValueJson.of(values.isNullAt(i) ? null : values.get(i, type)));
    }
    List<InternalRow> found = new ArrayList<>();
    for (JsonNode partition : python.ask("partition_values", arguments).get("partitions")) {
      found.add(ValueJson.readRow(partition, partitionSchema()));
    }
    return found.toArray(new InternalRow[0]);
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return Map.of();
  }

  @Override
  public void createPartitions(InternalRow[] partitions, Map<String, String>[] properties) {
    throw Errors.analysis("a partition exists when a row has its values: insert rows instead of ADD PARTITION");
  }

  @Override
  public boolean dropPartitions(InternalRow[] partitions) {
    python.ask("drop_partitions", described(partitions));
    return true;
  }

  /** TRUNCATE TABLE … PARTITION: a partition without rows is gone, and one that is not there is empty already. */
  @Override
  public boolean truncatePartitions(InternalRow[] partitions) {
    python.ask("truncate_partitions", described(partitions));
    return true;
  }

  @Override
  public boolean truncatePartition(InternalRow partition) {
    return truncatePartitions(new InternalRow[] {partition});
  }

  private ObjectNode described(InternalRow[] partitions) {
    ObjectNode arguments = PythonCatalog.named(identifier).put("uuid", id());
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
    throw Errors.analysis("partitions have no properties");
  }
}
