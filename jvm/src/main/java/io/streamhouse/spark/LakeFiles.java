package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/** Parquet files of the lake, of which some have rows that were deleted: each of these with its files of positions. */
final class LakeFiles implements InputPartition {
  private static final long serialVersionUID = 1L;
  final FilePartition files;

  /** Files of deleted positions of each file; none for a file of which all rows count. */
  final FilePartition[] deletes;

  private LakeFiles(FilePartition files, FilePartition[] deletes) {
    this.files = files;
    this.deletes = deletes;
  }

  @Override
  public String[] preferredLocations() {
    return files.preferredLocations();
  }

  /** Makes a partition of a group of a plan; Spark's own kind if no row was deleted. */
  static InputPartition of(int index, JsonNode group) {
    List<PartitionedFile> files = new ArrayList<>();
    List<FilePartition> deletes = new ArrayList<>();
    boolean hasDeletes = false;
    for (JsonNode file : group) {
      files.add(part(file, file.get("start").asLong(), file.get("length").asLong()));
      List<PartitionedFile> ofFile = new ArrayList<>();
      for (JsonNode delete : file.get("deletes")) ofFile.add(part(delete, 0, delete.get("size").asLong()));
      deletes.add(new FilePartition(index, ofFile.toArray(new PartitionedFile[0])));
      hasDeletes |= !ofFile.isEmpty();
    }
    FilePartition plain = new FilePartition(index, files.toArray(new PartitionedFile[0]));
    return hasDeletes ? new LakeFiles(plain, deletes.toArray(new FilePartition[0])) : plain;
  }

  private static PartitionedFile part(JsonNode file, long start, long length) {
    return new PartitionedFile(
        InternalRow.empty(),
        SparkPath.fromUrlString(file.get("path").asText()),
        start,
        length,
        new String[0],
        0L,
        file.get("size").asLong(),
        scala.collection.immutable.Map$.MODULE$.empty());
  }
}
