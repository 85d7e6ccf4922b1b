package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat$;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Spark's own Parquet readers for the given files of a scan: they list nothing and infer nothing. */
final class ParquetReaders implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Columns of a scan. */
  final PartitionReaderFactory rows;

  /** The same, then each row's position in its file; null where nothing needs it. */
  final PartitionReaderFactory numberedRows;

  /** Whether a reader may leave out rows that a filter does not want, so that they cannot be counted. */
  final boolean skipRows;

  /** Deleted positions, of files that are about one data file; null where there are none. */
  final PartitionReaderFactory positions;

  /** Whether some files have deleted rows. */
  final boolean hasDeletes;

  ParquetReaders(
      PartitionReaderFactory rows,
      PartitionReaderFactory numberedRows,
      boolean skipRows,
      PartitionReaderFactory positions,
      boolean hasDeletes) {
    this.skipRows = skipRows;
    this.rows = rows;
    this.numberedRows = numberedRows;
    this.positions = positions;
    this.hasDeletes = hasDeletes;
  }

  /**
   * Makes those readers that the files of a plan need, since each takes some milliseconds and the session's settings to
   * the executors. Where the plan may change, other parts of the files may be read.
   */
  static ParquetReaders of(
      StructType table,
      StructType required,
      List<Predicate> predicates,
      Map<String, String> options,
      List<JsonNode> files,
      boolean mayChange) {
    boolean skipRows = !predicates.isEmpty();
    boolean hasDeletes = files.stream().anyMatch(LakeFiles::hasDeletes);
    boolean hasNumbers = mayChange && hasDeletes;
    boolean hasPositions = false;
    for (JsonNode file : files) {
      hasNumbers |= LakeFiles.hasDeletes(file) && (skipRows || file.get("start").asLong() > 0);
      hasPositions |= file.get("deletes").size() > 0;
    }
    String number = ParquetFileFormat$.MODULE$.ROW_INDEX_TEMPORARY_COLUMN_NAME();
    StructType numbered = table.add(number, DataTypes.LongType);
    StructType ofNumbered = required.add(number, DataTypes.LongType);
    StructType deleted = new StructType().add("pos", DataTypes.LongType);
    return new ParquetReaders(
        factory(table, required, predicates, options),
        hasNumbers ? factory(numbered, ofNumbered, predicates, options) : null,
        skipRows,
        hasPositions ? factory(deleted, deleted, List.of(), options) : null,
        hasDeletes);
  }

  /** Tells whether rows that are read from a byte of their file on are those of the file from the first on. */
  boolean isCounted(long start) {
    return start == 0 && !skipRows;
  }

  /** Tells whether Spark reads these columns as batches, of which rows can be left out. */
  static boolean readBatches(StructType required) {
    return ParquetUtils.isBatchReadSupportedForSchema(SQLConf.get(), required);
  }

  private static PartitionReaderFactory factory(
      StructType table, StructType required, List<Predicate> predicates, Map<String, String> options) {
    return KeptReaders.of(table, required, ParquetFilters.of(predicates, table), options);
  }
}
