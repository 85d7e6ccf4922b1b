package io.streamhouse.spark;

import java.io.Serializable;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat$;
import org.apache.spark.sql.execution.datasources.parquet.ParquetUtils;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Spark's own Parquet readers for the given files of a scan: they list nothing and infer nothing. */
final class ParquetReaders implements Serializable {
  private static final long serialVersionUID = 1L;

  /** Columns of a scan. */
  final PartitionReaderFactory rows;

  /** The same, then each row's position in its file; null where no file has deleted rows. */
  final PartitionReaderFactory numberedRows;

  /** Whether a reader may leave out rows that a filter does not want, so that they cannot be counted. */
  final boolean skipRows;

  /** Deleted positions, of files that are about one data file; null where there are none. */
  final PartitionReaderFactory positions;

  ParquetReaders(
      PartitionReaderFactory rows,
      PartitionReaderFactory numberedRows,
      boolean skipRows,
      PartitionReaderFactory positions) {
    this.skipRows = skipRows;
    this.rows = rows;
    this.numberedRows = numberedRows;
    this.positions = positions;
  }

  static ParquetReaders of(
      StructType table,
      StructType required,
      List<Predicate> predicates,
      Map<String, String> options,
      boolean hasDeletes) {
    PartitionReaderFactory rows = factory(table, required, predicates, options);
    if (!hasDeletes) return new ParquetReaders(rows, null, false, null);
    String number = ParquetFileFormat$.MODULE$.ROW_INDEX_TEMPORARY_COLUMN_NAME();
    StructType positions = new StructType().add("pos", DataTypes.LongType);
    return new ParquetReaders(
        rows,
        factory(table.add(number, DataTypes.LongType), required.add(number, DataTypes.LongType), predicates, options),
        !predicates.isEmpty(),
        factory(positions, positions, List.of(), options));
  }

  /** Tells whether Spark reads these columns as batches, of which rows can be left out. */
  static boolean readBatches(StructType required) {
    return ParquetUtils.isBatchReadSupportedForSchema(SQLConf.get(), required);
  }

  private static PartitionReaderFactory factory(
      StructType table, StructType required, List<Predicate> predicates, Map<String, String> options) {
    SupportsRead parquet = (SupportsRead) new ParquetDataSourceV2().getTable(table, new Transform[0], options);
    ParquetScanBuilder builder = (ParquetScanBuilder) parquet.newScanBuilder(new CaseInsensitiveStringMap(options));
    builder.pruneColumns(required);
    builder.pushedDataFilters_$eq(builder.pushDataFilters(ParquetFilters.of(predicates, table)));
    return builder.build().toBatch().createReaderFactory();
  }
}
