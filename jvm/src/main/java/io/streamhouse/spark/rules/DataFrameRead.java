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
 * How one DataFrame of {@code format("streamhouse")} is read: by the catalog, with the version that the table had at
 * the DataFrame's first use, or by Python's data source. The choice is made once, because each way pins its own
 * version.
 */
final class DataFrameRead {
  private static final Map<PythonTable, DataFrameRead> BY_SOURCE = new WeakHashMap<>();
  private boolean isDecided;
  private ReadableTable table;

  /** Returns the choice for the DataFrames of one {@code load}. */
  static DataFrameRead of(PythonTable source) {
    synchronized (BY_SOURCE) {
      return BY_SOURCE.computeIfAbsent(source, key -> new DataFrameRead());
    }
  }

  /** Returns the catalog's table, or null if Python's data source reads the requested columns. */
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

  /** Loads the table. Returns null if Python rejects it, since the data source then reports the error. */
  private static ReadableTable loadTable(CaseInsensitiveStringMap options, PythonCatalog catalog) {
    catalog.initialize(PythonRpc.SOURCE_NAME, options);
    try {
      return ReadableTable.loadSource(catalog, options.asCaseSensitiveMap());
    } catch (Exception error) { // Scala throws checked exceptions without declaring them
      if (error instanceof AnalysisException) return null;
      throw error;
    }
  }

  /**
   * Returns whether the table has the requested columns with the same names and types, and nulls only where they are
   * expected. Python reads or rejects anything else.
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
