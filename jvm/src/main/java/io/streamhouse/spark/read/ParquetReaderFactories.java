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

/** Spark's Parquet reader factories for the files of one scan. They neither list files nor infer schemas. */
public final class ParquetReaderFactories implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Reads the columns of the scan. */
  final PartitionReaderFactory dataFactory;

  /** Reads the same columns and the position of each row in its file. Null if not needed. */
  final PartitionReaderFactory rowIndexFactory;

  /** Whether filters may skip rows, so that positions cannot be counted. */
  final boolean mayFilterRows;

  /** Reads position delete files. Null if there are none. */
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
   * Creates the factories that the files of a plan need. Each costs some milliseconds and a broadcast of the settings.
   * If the scan may be planned again, other parts of the files may be read.
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

  /** Returns whether the positions of rows that are read from byte {@code start} can be counted from 0. */
  boolean canCountPositions(long start) {
    return start == 0 && !mayFilterRows;
  }

  /** Returns whether Spark reads these columns in batches, from which rows can be removed. */
  public static boolean supportsBatches(StructType required) {
    return ParquetUtils.isBatchReadSupportedForSchema(SQLConf.get(), required);
  }

  private static PartitionReaderFactory createFactory(
      StructType table, StructType required, List<Predicate> predicates, Map<String, String> options) {
    return ParquetReaderCache.of(table, required, ParquetFilters.of(predicates, table), options);
  }
}
