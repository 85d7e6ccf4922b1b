package io.streamhouse.spark.read;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TimeZone;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.execution.datasources.InMemoryFileIndex;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScanBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Caches Spark's Parquet reader factories across queries.
 *
 *
 * <p>To create one, Spark copies the Hadoop configuration several times and broadcasts it: a third of the driver's time
 * in a short query. So queries that read the same columns with the same settings share a factory, each with its own
 * filters. Every query compares the settings.
 */
final class ParquetReaderCache {
  /** Each entry holds the Hadoop configuration, about 100 kB, in the driver and in the executors. */
  private static final int READERS_MAX = 32;

  private static final Map<List<Object>, ParquetPartitionReaderFactory> READERS = new LinkedHashMap<>(16, 0.75f, true);

  private ParquetReaderCache() {}

  /** Returns a factory that reads {@code required} from files with the schema {@code table}. */
  static ParquetPartitionReaderFactory of(
      StructType table, StructType required, Filter[] filters, Map<String, String> options) {
    SparkSession session = SparkSession$.MODULE$.active();
    SQLConf settings = session.sessionState().conf();
    List<Object> key = new ArrayList<>(cacheKey(session.sparkContext(), settings));
    key.add(table);
    key.add(required);
    key.add(Map.copyOf(options));
    ParquetPartitionReaderFactory cached = get(key);
    if (cached == null) {
      cached = createFactory(table, required, options);
      put(key, cached);
    }
    return new ParquetPartitionReaderFactory(
        settings, // of this query's session, since those of the cached factory may have changed
        cached.broadcastedConf(),
        cached.dataSchema(),
        cached.readDataSchema(),
        cached.partitionSchema(),
        filters,
        cached.aggregation(),
        cached.options());
  }

  /** Returns everything that a factory depends on, except its columns and options. */
  private static List<Object> cacheKey(SparkContext context, SQLConf session) {
    Map<String, String> hadoop = new HashMap<>();
    for (Map.Entry<String, String> entry : context.hadoopConfiguration()) hadoop.put(entry.getKey(), entry.getValue());
    return List.of(context.applicationId(), TimeZone.getDefault().getID(), session.getAllConfs(), hadoop);
  }

  private static ParquetPartitionReaderFactory createFactory(
      StructType table, StructType required, Map<String, String> options) {
    SparkSession session = SparkSession$.MODULE$.active();
    // Spark's Parquet table warns about every read without paths. The plan names the files, so none are listed.
    InMemoryFileIndex noFiles =
        new InMemoryFileIndex(session, CollectionConverters.asScala(List.<Path>of()).toSeq(), Map$.MODULE$.empty(),
            Option.apply(table), NoopCache$.MODULE$, Option.empty(), Option.empty());
    ParquetScanBuilder builder =
        new ParquetScanBuilder(session, noFiles, table, table, new CaseInsensitiveStringMap(options));
    builder.pruneColumns(required);
    return (ParquetPartitionReaderFactory) builder.build().toBatch().createReaderFactory();
  }

  private static synchronized ParquetPartitionReaderFactory get(List<Object> key) {
    return READERS.get(key);
  }

  private static synchronized void put(List<Object> key, ParquetPartitionReaderFactory reader) {
    READERS.keySet().removeIf(other -> !other.get(0).equals(key.get(0))); // Spark was restarted
    READERS.put(key, reader);
    Iterator<List<Object>> oldest = READERS.keySet().iterator();
    while (READERS.size() > READERS_MAX) {
      oldest.next();
      oldest.remove();
    }
  }
}
