package io.streamhouse.spark.read;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.Base64;
import java.util.BitSet;
import java.util.List;
import java.util.zip.InflaterInputStream;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/**
 * A partition of lake files of which some have deleted rows. Each file has its position delete files and the deletes
 * that the lake does not have yet.
 */
public final class LakeFilePartition implements InputPartition {
  private static final long serialVersionUID = 1L;
  final FilePartition files;

  /** The position delete files of each data file. Empty for a file without. */
  final FilePartition[] deleteFiles;

  /** Deleted positions of each data file from the plan, as a deflated bit set, or null. */
  private final byte[][] inlineDeletes;

  /** The number of rows of each data file, including deleted rows. */
  private final long[] rowCounts;

  private LakeFilePartition(
      FilePartition files, FilePartition[] deleteFiles, byte[][] inlineDeletes, long[] rowCounts) {
    this.files = files;
    this.deleteFiles = deleteFiles;
    this.inlineDeletes = inlineDeletes;
    this.rowCounts = rowCounts;
  }

  /** Returns the number of rows of a file, or -1 if only a part of the file is read. */
  long rowCount(int file) {
    PartitionedFile part = files.files()[file];
    return part.start() == 0 && part.length() == part.fileSize() ? rowCounts[file] : -1;
  }

  /** Returns whether a file of a plan has deleted rows. */
  static boolean hasDeletes(JsonNode file) {
    return file.get("deletes").size() > 0 || !file.get("deleted_positions").isNull();
  }

  /** Returns whether all rows of a file are live. */
  boolean hasNoDeletes(int file) {
    return deleteFiles[file].files().length == 0 && inlineDeletes[file] == null;
  }

  /** Returns the deleted positions of a file that the plan contains. */
  BitSet inlineDeletedPositions(int file) throws IOException {
    if (inlineDeletes[file] == null) return new BitSet();
    try (InputStream bits = new InflaterInputStream(new ByteArrayInputStream(inlineDeletes[file]))) {
      return BitSet.valueOf(bits.readAllBytes());
    }
  }

  @Override
  public String[] preferredLocations() {
    return files.preferredLocations();
  }

  /** Creates the partition of a file group, which is Spark's own {@code FilePartition} if no row was deleted. */
  public static InputPartition of(int index, JsonNode group) {
    List<PartitionedFile> files = new ArrayList<>();
    List<FilePartition> deleteFiles = new ArrayList<>();
    List<byte[]> inlineDeletes = new ArrayList<>();
    long[] rowCounts = new long[group.size()];
    boolean hasDeletes = false;
    for (JsonNode file : group) {
      rowCounts[files.size()] = file.get("rows").asLong();
      files.add(toPartitionedFile(file, file.get("start").asLong(), file.get("length").asLong()));
      List<PartitionedFile> deleteFilesOfFile = new ArrayList<>();
      for (JsonNode delete : file.get("deletes")) {
        deleteFilesOfFile.add(toPartitionedFile(delete, 0, delete.get("size").asLong()));
      }
      deleteFiles.add(new FilePartition(index, deleteFilesOfFile.toArray(new PartitionedFile[0])));
      JsonNode positions = file.get("deleted_positions");
      inlineDeletes.add(positions.isNull() ? null : Base64.getDecoder().decode(positions.asText()));
      hasDeletes |= hasDeletes(file);
    }
    FilePartition dataFiles = new FilePartition(index, files.toArray(new PartitionedFile[0]));
    if (!hasDeletes) return dataFiles;
    return new LakeFilePartition(dataFiles, deleteFiles.toArray(new FilePartition[0]),
        inlineDeletes.toArray(new byte[0][]), rowCounts);
  }

  private static PartitionedFile toPartitionedFile(JsonNode file, long start, long length) {
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
