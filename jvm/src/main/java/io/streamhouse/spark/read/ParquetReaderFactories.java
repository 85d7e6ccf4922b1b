package io.streamhouse.spark.read;

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
public final class ParquetReaderFactories implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Columns of a scan. */
  final PartitionReaderFactory dataFactory;

  /** The same, then each row's position in its file; null where nothing needs it. */
  final PartitionReaderFactory rowIndexFactory;

  /** Whether a reader may leave out rows that a filter does not want, so that they cannot be counted. */
  final boolean mayFilterRows;

  /** Deleted positions, of files that are about one data file; null where there are none. */
  final PartitionReaderFactory deleteFactory;

  /** Whether some files have deleted rows. */
  final boolean hasDeletes;

  ParquetReaderFactories(
      PartitionReaderFactory dataFactory,
      PartitionReaderFactory rowIndexFactory,
      boolean mayFilterRows,
      PartitionReaderFactory deleteFactory,
      boolean hasDeletes) {
    this.mayFilterRows = mayFilterRows;
    this.dataFactory = dataFactory;
    this.rowIndexFactory = rowIndexFactory;
    this.deleteFactory = deleteFactory;
    this.hasDeletes = hasDeletes;
  }

  /**
   * Makes those readers that the files of a plan need, since each takes some milliseconds and the session's settings to
   * the executors. Where the plan may change, other parts of the files may be read.
   */
  public static ParquetReaderFactories of(
      StructType table,
      StructType required,
      List<Predicate> predicates,
      Map<String, String> options,
      List<JsonNode> files,
      boolean mayChange) {
    boolean mayFilterRows = !predicates.isEmpty();
    boolean hasDeletes = files.stream().anyMatch(LakeFilePartition::hasDeletes);
    boolean needsRowIndex = mayChange && hasDeletes;
    boolean hasPositions = false;
    for (JsonNode file : files) {
      needsRowIndex |= LakeFilePartition.hasDeletes(file) && (mayFilterRows || file.get("start").asLong() > 0);
      hasPositions |= file.get("deletes").size() > 0;
    }
    String rowIndex = ParquetFileFormat$.MODULE$.ROW_INDEX_TEMPORARY_COLUMN_NAME();
    StructType tableWithRowIndex = table.add(rowIndex, DataTypes.LongType);
    StructType requiredWithRowIndex = required.add(rowIndex, DataTypes.LongType);
    StructType deleted = new StructType().add("pos", DataTypes.LongType);
    return new ParquetReaderFactories(
        createFactory(table, required, predicates, options),
        needsRowIndex ? createFactory(tableWithRowIndex, requiredWithRowIndex, predicates, options) : null,
        mayFilterRows,
        hasPositions ? createFactory(deleted, deleted, List.of(), options) : null,
        hasDeletes);
  }

  /** Tells whether rows that are read from a byte of their file on are those of the file from the first on. */
  boolean canCountPositions(long start) {
    return start == 0 && !mayFilterRows;
  }

  /** Tells whether Spark reads these columns as batches, of which rows can be left out. */
  public static boolean supportsBatches(StructType required) {
    return ParquetUtils.isBatchReadSupportedForSchema(SQLConf.get(), required);
  }

  private static PartitionReaderFactory createFactory(
      StructType table, StructType required, List<Predicate> predicates, Map<String, String> options) {
    return ParquetReaderCache.of(table, required, ParquetFilters.of(predicates, table), options);
  }
}
