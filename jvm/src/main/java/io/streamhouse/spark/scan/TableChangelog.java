package io.streamhouse.spark.scan;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.rpc.MappedException;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The changes of a table in a range of commits. Spark 4.1 does not have the API, so no class that it loads may refer to
 * this one.
 */
final class TableChangelog implements Changelog {
  private final ReadableTable table;

  private TableChangelog(ReadableTable table) {
    this.table = table;
  }

  /**
   * Returns exactly the type that the caller returns. For a subtype, the JVM's verifier would load both types, even
   * where they do not exist.
   */
  static Changelog load(PythonCatalog catalog, Identifier identifier, ChangelogContext context)
      throws NoSuchTableException {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("mode", context.deduplicationMode().value());
    describeRange(arguments.putObject("range"), context.range());
    try {
      JsonNode metadata = catalog.python().call("load_changes", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
      return new TableChangelog(new ReadableTable(catalog, identifier, metadata));
    } catch (MappedException error) {
      throw new NoSuchTableException(identifier);
    }
  }

  /** Encodes the range. An unbounded range has no bounds, and throws if it is asked for them. */
  private static void describeRange(ObjectNode json, ChangelogRange range) {
    if (range instanceof ChangelogRange.VersionRange) {
      ChangelogRange.VersionRange versions = (ChangelogRange.VersionRange) range;
      json.put("by", "version").put("start", versions.startingVersion());
      json.put("end", versions.endingVersion().orElse(null));
    } else if (range instanceof ChangelogRange.TimestampRange) {
      ChangelogRange.TimestampRange times = (ChangelogRange.TimestampRange) range;
      json.put("by", "timestamp").put("start", times.startingTimestamp());
      json.put("end", times.endingTimestamp().orElse(null));
    } else {
      json.put("by", "none");
      return;
    }
    json.put("includes_start", range.startingBoundInclusive()).put("includes_end", range.endingBoundInclusive());
  }

  @Override
  public String name() {
    return table.name();
  }

  @Override
  public Column[] columns() {
    List<Column> columns = new ArrayList<>();
    for (StructField field : table.schema.fields()) {
      columns.add(Column.create(field.name(), field.dataType(), field.nullable()));
    }
    return columns.toArray(new Column[0]);
  }

  @Override
  public boolean containsCarryoverRows() {
    return false;
  }

  /**
   * Returns whether a row may change several times. Without a primary key, Python already removes intermediate changes.
   */
  @Override
  public boolean containsIntermediateChanges() {
    return table.metadata.get("row_id").size() > 0;
  }

  @Override
  public boolean representsUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public NamedReference[] rowId() {
    List<NamedReference> references = new ArrayList<>();
    for (String column : Json.toList(table.metadata.get("row_id"))) references.add(FieldReference.column(column));
    return references.toArray(new NamedReference[0]);
  }

  /** The range is already pinned, so the options are only validated. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    table.checkOptions("changes", options.asCaseSensitiveMap());
    return new TableScanBuilder(table, Map.of(), null);
  }
}
