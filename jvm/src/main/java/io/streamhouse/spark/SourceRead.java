package io.streamhouse.spark;

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
final class SourceRead {
  private static final Map<PythonTable, SourceRead> KNOWN = new WeakHashMap<>();
  private boolean isDecided;
  private ReadableTable table;

  /** The way of the DataFrames that were made by one {@code load}. */
  static SourceRead of(PythonTable source) {
    synchronized (KNOWN) {
      return KNOWN.computeIfAbsent(source, none -> new SourceRead());
    }
  }

  /** The catalog's table; null if Python reads the columns that are asked for. */
  synchronized ReadableTable table(
      StructType asked, CaseInsensitiveStringMap options, boolean isOn, Supplier<PythonCatalog> catalogs) {
    if (!isDecided) {
      ReadableTable found = isOn ? loaded(options, catalogs.get()) : null;
      table = found != null && fits(asked, found.schema) ? found : null;
      isDecided = true;
    }
    return table;
  }

  /** The table now; null if Python refuses it, and then says why in its own way. */
  private static ReadableTable loaded(CaseInsensitiveStringMap options, PythonCatalog catalog) {
    catalog.initialize(PythonCalls.SOURCE, options);
    try {
      return ReadableTable.ofSource(catalog, options.asCaseSensitiveMap());
    } catch (Exception error) { // Scala throws checked ones without saying so
      if (error instanceof AnalysisException) return null;
      throw error;
    }
  }

  /**
   * Whether the table has the columns that are asked for, by these very names, with these types and with nulls only
   * where they are expected. Python reads or refuses all others.
   */
  static boolean fits(StructType asked, StructType table) {
    List<String> names = Arrays.asList(asked.fieldNames());
    if (names.isEmpty() || new HashSet<>(names).size() < names.size()) return false;
    if (!Arrays.asList(table.fieldNames()).containsAll(names)) return false;
    StructType found = new StructType();
    for (String name : names) found = found.add(table.apply(name));
    return DataType$.MODULE$.equalsIgnoreCompatibleNullability(found, asked);
  }
}
