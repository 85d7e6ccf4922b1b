package io.streamhouse.spark.read;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.v2.FilePartitionReaderFactory;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Spark's reader of a file knows how many rows it returns, with and without a filter that skips pages. */
class RowCountHintTest {
  private static final int ROWS = 100_000;

  @Test
  void rowsThatAFilterSkipsAreNotCounted(@TempDir Path folder) throws IOException {
    SparkSession session = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate();
    try {
      String target = folder.resolve("rows").toString();
      session.range(0, ROWS, 1, 1).write().option("parquet.page.row.count.limit", "1000").parquet(target);
      File file = new File(target).listFiles((dir, name) -> name.endsWith(".parquet"))[0];
      assertEquals(ROWS, expected(file, List.of()));
      assertEquals(ROWS, expected(file, List.of(idAbove(-1))));
      long some = expected(file, List.of(idAbove(ROWS - 10)));
      assertEquals(true, some > 0 && some < ROWS, "rows: " + some);
    } finally {
      session.stop();
    }
  }

  private static Predicate idAbove(long value) {
    Expression[] both = {FieldReference.column("id"), LiteralValue.apply(value, DataTypes.LongType)};
    return new Predicate(">", both);
  }

  private static long expected(File file, List<Predicate> filter) throws IOException {
    StructType table = new StructType().add("id", DataTypes.LongType);
    Map<String, String> options = Map.of();
    ParquetReaderFactories readers = ParquetReaderFactories.of(table, table, filter, options, List.of(), false);
    PartitionedFile whole =
        new PartitionedFile(
            InternalRow.empty(),
            SparkPath.fromUrlString(file.toURI().toString()),
            0,
            file.length(),
            new String[0],
            0L,
            file.length(),
            scala.collection.immutable.Map$.MODULE$.empty());
    FilePartitionReaderFactory factory = (FilePartitionReaderFactory) readers.dataFactory;
    try (PartitionReader<ColumnarBatch> reader = factory.buildColumnarReader(whole)) {
      return RowCountHint.of(reader);
    }
  }
}
