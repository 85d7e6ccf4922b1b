package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.BucketFunction;
import io.streamhouse.spark.catalog.PipelineRuns;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.catalog.TableChangeJson;
import io.streamhouse.spark.catalog.TableDefinitionJson;
import io.streamhouse.spark.procedure.PythonProcedure;
import io.streamhouse.spark.rpc.MappedException;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.scan.ChangelogCatalog;
import io.streamhouse.spark.scan.ReadableTable;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.write.PartitionedTable;
import io.streamhouse.spark.write.StagedWritableTable;
import io.streamhouse.spark.write.WritableTable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A Spark catalog whose decisions are made in Python, through {@link PythonRpc}: which tables exist, which rows a query
 * reads, and what a write does.
 *
 *
 * <p>A table that is loaded here is pinned to one commit. Because {@link Table#version} is set, Spark loads tables anew
 * at the start of each query and uses one instance throughout the query. So a query reads one version, the latest.
 */
public class StreamhouseCatalog
    implements StagingTableCatalog, ChangelogCatalog, SupportsNamespaces, FunctionCatalog, ProcedureCatalog {
  private String name;
  private PythonRpc python = new PythonRpc(Map.of());

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    name = catalogName;
    python = new PythonRpc(options.asCaseSensitiveMap());
  }

  @Override
  public PythonRpc python() {
    return python;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public String[] defaultNamespace() {
    return new String[] {"default"};
  }

  @Override
  public Set<TableCatalogCapability> capabilities() {
    return EnumSet.of(
        TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT,
        TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE,
        TableCatalogCapability.SUPPORTS_CREATE_TABLE_WITH_GENERATED_COLUMNS,
        TableCatalogCapability.SUPPORTS_CREATE_TABLE_WITH_IDENTITY_COLUMNS);
  }

  // -- databases -----------------------------------------------------------------------------------------------------

  @Override
  public String[][] listNamespaces() {
    List<String[]> namespaces = new ArrayList<>();
    for (JsonNode database : python().call("databases", Json.object()).get("databases")) {
      namespaces.add(new String[] {database.asText()});
    }
    return namespaces.toArray(new String[0][]);
  }

  @Override
  public String[][] listNamespaces(String[] parent) throws NoSuchNamespaceException {
    if (parent.length == 0) return listNamespaces();
    if (!namespaceExists(parent)) throw new NoSuchNamespaceException(parent);
    return new String[0][];
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    return namespace.length == 0 || (namespace.length == 1 && describeDatabase(namespace).get("exists").asBoolean());
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) return Map.of();
    if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(namespace);
    return Json.toMap(describeDatabase(namespace).get("properties"));
  }

  private JsonNode describeDatabase(String[] namespace) {
    return python().call("database", Json.object().put("database", namespace[0]));
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata)
      throws NamespaceAlreadyExistsException {
    ObjectNode arguments = Json.object().put("database", singleName(namespace));
    arguments.set("properties", Json.object(metadata));
    try {
      python().call("create_database", arguments, "DATABASE_EXISTS");
    } catch (MappedException error) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    ObjectNode arguments = Json.object().put("database", singleName(namespace));
    ArrayNode changesJson = arguments.putArray("changes");
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty) {
        NamespaceChange.SetProperty set = (NamespaceChange.SetProperty) change;
        changesJson.addObject().put("change", "set_property").put("name", set.property()).put("value", set.value());
      } else {
        String property = ((NamespaceChange.RemoveProperty) change).property();
        changesJson.addObject().put("change", "remove_property").put("name", property);
      }
    }
    try {
      python().call("alter_database", arguments, "DATABASE_NOT_FOUND");
    } catch (MappedException error) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    try {
      ObjectNode arguments = Json.object().put("database", singleName(namespace)).put("cascade", cascade);
      JsonNode answer = python().call("drop_database", arguments, "DATABASE_NOT_FOUND", "DATABASE_NOT_EMPTY");
      return answer.get("dropped").asBoolean();
    } catch (MappedException error) {
      if (error.hasCondition("DATABASE_NOT_EMPTY")) throw new NonEmptyNamespaceException(namespace);
      throw new NoSuchNamespaceException(namespace);
    }
  }

  private static String singleName(String[] namespace) {
    if (namespace.length == 1) return namespace[0];
    throw SparkErrors.analysisException("databases cannot be nested; found "
        + String.join(".", namespace));
  }

  // -- tables --------------------------------------------------------------------------------------------------------

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    List<Identifier> identifiers = new ArrayList<>();
    if (namespace.length != 1) throw new NoSuchNamespaceException(namespace);
    try {
      ObjectNode arguments = Json.object().put("database", namespace[0]);
      for (JsonNode table : python().call("tables", arguments, "DATABASE_NOT_FOUND").get("tables")) {
        identifiers.add(Identifier.of(namespace, table.asText()));
      }
    } catch (MappedException error) {
      throw new NoSuchNamespaceException(namespace);
    }
    return identifiers.toArray(new Identifier[0]);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, PythonCatalog.nameArguments(identifier));
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, PythonCatalog.nameArguments(identifier).put("version", version));
  }

  @Override
  public Table loadTable(Identifier identifier, long timestampMicros) throws NoSuchTableException {
    return load(identifier, PythonCatalog.nameArguments(identifier).put("timestamp_us", timestampMicros));
  }

  /** Loads a table. The conditions in {@code handled} are thrown as {@link MappedException}. */
  Table load(Identifier identifier, ObjectNode arguments, String... handled) throws NoSuchTableException {
    if (identifier.namespace().length != 1) throw new NoSuchTableException(identifier);
    List<String> conditions = new ArrayList<>(List.of("TABLE_NOT_FOUND", "DATABASE_NOT_FOUND"));
    conditions.addAll(Arrays.asList(handled));
    try {
      JsonNode metadata = python().call("load", arguments, conditions.toArray(new String[0]));
      if (!metadata.get("kind").asText().equals("table")) return new ReadableTable(this, identifier, metadata);
      return newWritableTable(identifier, metadata, metadata.get("partition_columns").size() > 0);
    } catch (MappedException error) {
      if (Arrays.asList(handled).stream().anyMatch(error::hasCondition)) throw error;
      throw new NoSuchTableException(identifier);
    }
  }

  /** Creates the table object for a table of rows. The view catalog overrides this. */
  WritableTable newWritableTable(Identifier identifier, JsonNode metadata, boolean isPartitioned) {
    return isPartitioned
        ? new PartitionedTable(this, identifier, metadata)
        : new WritableTable(this, identifier, metadata);
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return createAndLoad(identifier, info, Json.object());
  }

  /**
   * Implements CREATE TABLE … LIKE for Spark 4.2 and newer. Spark 4.1 has no such method, so there is no {@code
   * @Override}.
   */
  public Table createTableLike(Identifier identifier, TableInfo info, Table source)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    boolean isStreamhouseTable = source instanceof ReadableTable && ((ReadableTable) source).hasKind("table");
    return createAndLoad(
        identifier, info, isStreamhouseTable ? ((ReadableTable) source).metadata.get("properties") : Json.object());
  }

  private Table createAndLoad(Identifier identifier, TableInfo info, JsonNode like)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    ObjectNode arguments = TableDefinitionJson.of(identifier, info);
    arguments.set("like", like);
    try {
      python().call("create_table", arguments, "TABLE_EXISTS", "DATABASE_NOT_FOUND");
      return loadTable(identifier);
    } catch (NoSuchTableException error) {
      throw SparkErrors.analysisException("table " + identifier + " was dropped concurrently");
    } catch (MappedException error) {
      if (error.hasCondition("TABLE_EXISTS")) throw new TableAlreadyExistsException(identifier);
      throw new NoSuchNamespaceException(identifier.namespace());
    }
  }

  /** Implements CREATE TABLE … AS SELECT. The table exists before its rows do, and is dropped if they fail. */
  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return new StagedWritableTable(this, identifier, ((ReadableTable) createTable(identifier, info)).metadata, true);
  }

  /** Replaces the rows of a table in one commit, or the table by a new one. Python decides which. */
  @Override
  public StagedTable stageReplace(Identifier identifier, TableInfo info) throws NoSuchTableException {
    try {
      ObjectNode arguments = TableDefinitionJson.of(identifier, info);
      JsonNode metadata = python().call("replace_table", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
      return new StagedWritableTable(this, identifier, metadata, false);
    } catch (MappedException error) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info) throws NoSuchNamespaceException {
    try {
      return stageReplace(identifier, info);
    } catch (NoSuchTableException notFound) {
      try {
        return stageCreate(identifier, info);
      } catch (TableAlreadyExistsException alreadyExists) {
        throw SparkErrors.analysisException("table " + identifier
            + " was created concurrently; run the query again");
      }
    }
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes) throws NoSuchTableException {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("time_zone", TableDefinitionJson.timeZone());
    arguments.put("of_pipeline", PipelineRuns.isPreparingTables());
    ArrayNode changesJson = arguments.putArray("changes");
    for (TableChange change : changes) changesJson.add(TableChangeJson.of(change));
    try {
      python().call("alter_table", arguments, "TABLE_NOT_FOUND");
    } catch (MappedException error) {
      throw new NoSuchTableException(identifier);
    }
    return loadTable(identifier);
  }

  @Override
  public void mergeColumns(Identifier identifier, StructType rows) {
    try {
      ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("schema", rows.json());
      python().call("merge_columns", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
    } catch (MappedException error) {
      // the table does not exist: Spark reports it
    }
  }

  /** Implements REFRESH TABLE by invalidating the cached answers for all tables. */
  @Override
  public void invalidateTable(Identifier identifier) {
    python().invalidate();
  }

  @Override
  public boolean dropTable(Identifier identifier) {
    return drop(identifier, false);
  }

  @Override
  public boolean purgeTable(Identifier identifier) {
    return drop(identifier, true);
  }

  private boolean drop(Identifier identifier, boolean purge) {
    return python().call("drop_table", PythonCatalog.nameArguments(identifier).put("purge", purge)).get(
        "dropped").asBoolean();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
    ObjectNode arguments =
        PythonCatalog.nameArguments(from).put("to_database", databaseOf(to)).put("to_table", to.name());
    try {
      python().call("rename_table", arguments, "TABLE_NOT_FOUND", "TABLE_EXISTS");
    } catch (MappedException error) {
      if (error.hasCondition("TABLE_EXISTS")) throw new TableAlreadyExistsException(to);
      throw new NoSuchTableException(from);
    }
  }

  /** Returns the database of a new name. Spark keeps the catalog's name in front of it if the statement has one. */
  String databaseOf(Identifier to) {
    String[] namespace = to.namespace();
    return namespace.length == 2 && namespace[0].equals(name) ? namespace[1] : singleName(namespace);
  }

  // -- functions and procedures --------------------------------------------------------------------------------------

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[] {Identifier.of(namespace, "bucket"), Identifier.of(namespace, "slot")};
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    String[] namespace = identifier.namespace();
    boolean isSystem = namespace.length == 0 || (namespace.length == 1 && namespace[0].equals("system"));
    if (isSystem && identifier.name().equalsIgnoreCase("bucket")) return new BucketFunction(false);
    if (isSystem && identifier.name().equalsIgnoreCase("slot")) return new BucketFunction(true);
    throw new NoSuchFunctionException(identifier);
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    List<Identifier> identifiers = new ArrayList<>();
    for (JsonNode procedure : python().call("procedures", Json.object()).get("procedures")) {
      identifiers.add(Identifier.of(new String[] {"system"}, procedure.get("name").asText()));
    }
    return identifiers.toArray(new Identifier[0]);
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    List<String> procedureNames = new ArrayList<>();
    if (Arrays.equals(identifier.namespace(), new String[] {"system"})) {
      for (JsonNode procedure : python().call("procedures", Json.object()).get("procedures")) {
        String procedureName = procedure.get("name").asText();
        procedureNames.add(procedureName);
        if (procedureName.equalsIgnoreCase(identifier.name())) return new PythonProcedure(python(), procedure);
      }
    }
    throw SparkErrors.analysisException(
        "PROCEDURE_NOT_FOUND: unknown procedure " + identifier + ", expected one of " + name + ".system."
            + (procedureNames.isEmpty()
                ? "…, see SHOW PROCEDURES IN " + name + ".system"
                : String.join(", ", procedureNames)));
  }
}
