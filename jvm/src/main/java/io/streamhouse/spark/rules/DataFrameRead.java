package io.streamhouse.spark.rules;

import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.scan.ReadableTable;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import java.util.function.Supplier;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The way of one DataFrame of {@code format("streamhouse")}: the catalog's, with the state that its table had at the
 * DataFrame's first use, or Python's. It is decided once, because each way keeps a state of its own.
 */
final class DataFrameRead {
  private static final Map<PythonTable, DataFrameRead> BY_SOURCE = new WeakHashMap<>();
  private boolean isDecided;
  private ReadableTable table;

  /** The way of the DataFrames that were made by one {@code load}. */
  static DataFrameRead of(PythonTable source) {
    synchronized (BY_SOURCE) {
      return BY_SOURCE.computeIfAbsent(source, key -> new DataFrameRead());
    }
  }

  /** The catalog's table; null if Python reads the columns that are asked for. */
  synchronized ReadableTable table(
      StructType requested, CaseInsensitiveStringMap options, boolean isEnabled,
      Supplier<PythonCatalog> catalogFactory) {
    if (!isDecided) {
      ReadableTable loadedTable = isEnabled ? loadTable(options, catalogFactory.get()) : null;
      table = loadedTable != null && supportsSchema(requested, loadedTable.schema) ? loadedTable : null;
      isDecided = true;
    }
    return table;
  }

  /** The table now; null if Python refuses it, and then says why in its own way. */
  private static ReadableTable loadTable(CaseInsensitiveStringMap options, PythonCatalog catalog) {
    catalog.initialize(PythonRpc.SOURCE_NAME, options);
    try {
      return ReadableTable.loadSource(catalog, options.asCaseSensitiveMap());
    } catch (Exception error) { // Scala throws checked ones without saying so
      if (error instanceof AnalysisException) return null;
      throw error;
    }
  }

  /**
   * Whether the table has the columns that are asked for, by these very names, with these types and with nulls only
   * where they are expected. Python reads or refuses all others.
   */
  static boolean supportsSchema(StructType requested, StructType table) {
    List<String> names = Arrays.asList(requested.fieldNames());
    if (names.isEmpty() || new HashSet<>(names).size() < names.size()) return false;
    if (!Arrays.asList(table.fieldNames()).containsAll(names)) return false;
    StructType available = new StructType();
    for (String name : names) available = available.add(table.apply(name));
    return DataType$.MODULE$.equalsIgnoreCompatibleNullability(available, requested);
  }
}
