package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
 * A Spark catalog whose every decision is made in Python, by {@link PythonCalls}: which tables there are, which rows a
 * query reads, and the effect of a write.
 *
 * <p>A table loaded here is pinned to one commit. Spark loads tables anew at the start of each query, because {@link
 * Table#version} is set. It uses one instance for all uses of a table within the query. So a query sees one state, the
 * newest.
 */
public class StreamhouseCatalog
    implements StagingTableCatalog, ChangesCatalog, SupportsNamespaces, FunctionCatalog, ProcedureCatalog {
  private String name;
  private PythonCalls python = new PythonCalls(Map.of());

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    name = catalogName;
    python = new PythonCalls(options.asCaseSensitiveMap());
  }

  @Override
  public PythonCalls python() {
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
    List<String[]> found = new ArrayList<>();
    for (JsonNode database : python().ask("databases", JsonTree.object()).get("databases")) {
      found.add(new String[] {database.asText()});
    }
    return found.toArray(new String[0][]);
  }

  @Override
  public String[][] listNamespaces(String[] parent) throws NoSuchNamespaceException {
    if (parent.length == 0) return listNamespaces();
    if (!namespaceExists(parent)) throw new NoSuchNamespaceException(parent);
    return new String[0][];
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    return namespace.length == 0 || (namespace.length == 1 && database(namespace).get("exists").asBoolean());
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length == 0) return Map.of();
    if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(namespace);
    return JsonTree.texts(database(namespace).get("properties"));
  }

  private JsonNode database(String[] namespace) {
    return python().ask("database", JsonTree.object().put("database", namespace[0]));
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata)
      throws NamespaceAlreadyExistsException {
    ObjectNode arguments = JsonTree.object().put("database", oneName(namespace));
    arguments.set("properties", JsonTree.object(metadata));
    try {
      python().ask("create_database", arguments, "DATABASE_EXISTS");
    } catch (Refused refused) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    ObjectNode arguments = JsonTree.object().put("database", oneName(namespace));
    ArrayNode described = arguments.putArray("changes");
    for (NamespaceChange change : changes) {
      if (change instanceof NamespaceChange.SetProperty) {
        NamespaceChange.SetProperty set = (NamespaceChange.SetProperty) change;
        described.addObject().put("change", "set_property").put("name", set.property()).put("value", set.value());
      } else {
        String property = ((NamespaceChange.RemoveProperty) change).property();
        described.addObject().put("change", "remove_property").put("name", property);
      }
    }
    try {
      python().ask("alter_database", arguments, "DATABASE_NOT_FOUND");
    } catch (Refused refused) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    try {
      ObjectNode arguments = JsonTree.object().put("database", oneName(namespace)).put("cascade", cascade);
      JsonNode answer = python().ask("drop_database", arguments, "DATABASE_NOT_FOUND", "DATABASE_NOT_EMPTY");
      return answer.get("dropped").asBoolean();
    } catch (Refused refused) {
      if (refused.is("DATABASE_NOT_EMPTY")) throw new NonEmptyNamespaceException(namespace);
      throw new NoSuchNamespaceException(namespace);
    }
  }

  private static String oneName(String[] namespace) {
    if (namespace.length == 1) return namespace[0];
    throw Errors.analysis("databases have no databases within them; found " + String.join(".", namespace));
  }

  // -- tables --------------------------------------------------------------------------------------------------------

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    List<Identifier> found = new ArrayList<>();
    if (namespace.length != 1) throw new NoSuchNamespaceException(namespace);
    try {
      ObjectNode arguments = JsonTree.object().put("database", namespace[0]);
      for (JsonNode table : python().ask("tables", arguments, "DATABASE_NOT_FOUND").get("tables")) {
        found.add(Identifier.of(namespace, table.asText()));
      }
    } catch (Refused refused) {
      throw new NoSuchNamespaceException(namespace);
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, PythonCatalog.named(identifier));
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, PythonCatalog.named(identifier).put("version", version));
  }

  @Override
  public Table loadTable(Identifier identifier, long timestampMicros) throws NoSuchTableException {
    return load(identifier, PythonCatalog.named(identifier).put("timestamp_us", timestampMicros));
  }

  /** What else is handled is thrown as {@link Refused}. */
  Table load(Identifier identifier, ObjectNode arguments, String... handled) throws NoSuchTableException {
    if (identifier.namespace().length != 1) throw new NoSuchTableException(identifier);
    List<String> conditions = new ArrayList<>(List.of("TABLE_NOT_FOUND", "DATABASE_NOT_FOUND"));
    conditions.addAll(Arrays.asList(handled));
    try {
      JsonNode found = python().ask("load", arguments, conditions.toArray(new String[0]));
      if (!found.get("kind").asText().equals("table")) return new ReadableTable(this, identifier, found);
      return writableTable(identifier, found, found.get("partition_columns").size() > 0);
    } catch (Refused refused) {
      if (Arrays.asList(handled).stream().anyMatch(refused::is)) throw refused;
      throw new NoSuchTableException(identifier);
    }
  }

  /** The table of rows that Python found. */
  WritableTable writableTable(Identifier identifier, JsonNode found, boolean isPartitioned) {
    return isPartitioned
        ? new PartitionedTable(this, identifier, found)
        : new WritableTable(this, identifier, found);
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return create(identifier, info, JsonTree.object());
  }

  /** CREATE TABLE … LIKE, which Spark has from 4.2 on; 4.1 has no such method to override. */
  public Table createTableLike(Identifier identifier, TableInfo info, Table source)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    boolean isOurs = source instanceof ReadableTable && ((ReadableTable) source).hasKind("table");
    return create(
        identifier, info, isOurs ? ((ReadableTable) source).loaded.get("properties") : JsonTree.object());
  }

  private Table create(Identifier identifier, TableInfo info, JsonNode like)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    ObjectNode arguments = TableDescription.of(identifier, info);
    arguments.set("like", like);
    try {
      python().ask("create_table", arguments, "TABLE_EXISTS", "DATABASE_NOT_FOUND");
      return loadTable(identifier);
    } catch (NoSuchTableException error) {
      throw Errors.analysis("table " + identifier + " was dropped while it was being created");
    } catch (Refused refused) {
      if (refused.is("TABLE_EXISTS")) throw new TableAlreadyExistsException(identifier);
      throw new NoSuchNamespaceException(identifier.namespace());
    }
  }

  /** CREATE TABLE … AS SELECT: the table exists before its rows do, and is dropped again if they fail. */
  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return new StagedWritableTable(this, identifier, ((ReadableTable) createTable(identifier, info)).loaded, true);
  }

  /** Replaces the rows of a table in one commit, or the table by another, which Python decides. */
  @Override
  public StagedTable stageReplace(Identifier identifier, TableInfo info) throws NoSuchTableException {
    try {
      ObjectNode arguments = TableDescription.of(identifier, info);
      JsonNode found = python().ask("replace_table", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
      return new StagedWritableTable(this, identifier, found, false);
    } catch (Refused refused) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier identifier, TableInfo info) throws NoSuchNamespaceException {
    try {
      return stageReplace(identifier, info);
    } catch (NoSuchTableException none) {
      try {
        return stageCreate(identifier, info);
      } catch (TableAlreadyExistsException other) {
        throw Errors.analysis("table " + identifier + " was created by another query meanwhile; run this one again");
      }
    }
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes) throws NoSuchTableException {
    ObjectNode arguments = PythonCatalog.named(identifier).put("time_zone", TableDescription.timeZone());
    arguments.put("of_pipeline", Pipelines.prepares());
    ArrayNode described = arguments.putArray("changes");
    for (TableChange change : changes) described.add(ChangeJson.of(change));
    try {
      python().ask("alter_table", arguments, "TABLE_NOT_FOUND");
    } catch (Refused refused) {
      throw new NoSuchTableException(identifier);
    }
    return loadTable(identifier);
  }

  @Override
  public void mergeColumns(Identifier identifier, StructType rows) {
    try {
      ObjectNode arguments = PythonCatalog.named(identifier).put("schema", rows.json());
      python().ask("merge_columns", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
    } catch (Refused refused) {
      // nothing to add
    }
  }

  /** REFRESH TABLE: the next query asks Python anew, about all tables. */
  @Override
  public void invalidateTable(Identifier identifier) {
    python().forget();
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
    return python().ask("drop_table", PythonCatalog.named(identifier).put("purge", purge)).get("dropped").asBoolean();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
    ObjectNode arguments = PythonCatalog.named(from).put("to_database", databaseOf(to)).put("to_table", to.name());
    try {
      python().ask("rename_table", arguments, "TABLE_NOT_FOUND", "TABLE_EXISTS");
    } catch (Refused refused) {
      if (refused.is("TABLE_EXISTS")) throw new TableAlreadyExistsException(to);
      throw new NoSuchTableException(from);
    }
  }

  /** The database of a new name. Spark leaves the catalog's name before it where the statement says it. */
  String databaseOf(Identifier to) {
    String[] namespace = to.namespace();
    return namespace.length == 2 && namespace[0].equals(name) ? namespace[1] : oneName(namespace);
  }

  // -- functions and procedures --------------------------------------------------------------------------------------

  @Override
  public Identifier[] listFunctions(String[] namespace) {
    return new Identifier[] {Identifier.of(namespace, "bucket"), Identifier.of(namespace, "slot")};
  }

  @Override
  public UnboundFunction loadFunction(Identifier identifier) throws NoSuchFunctionException {
    String[] namespace = identifier.namespace();
    boolean ours = namespace.length == 0 || (namespace.length == 1 && namespace[0].equals("system"));
    if (ours && identifier.name().equalsIgnoreCase("bucket")) return new BucketFunction(false);
    if (ours && identifier.name().equalsIgnoreCase("slot")) return new BucketFunction(true);
    throw new NoSuchFunctionException(identifier);
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    List<Identifier> found = new ArrayList<>();
    for (JsonNode procedure : python().ask("procedures", JsonTree.object()).get("procedures")) {
      found.add(Identifier.of(new String[] {"system"}, procedure.get("name").asText()));
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    List<String> known = new ArrayList<>();
    if (Arrays.equals(identifier.namespace(), new String[] {"system"})) {
      for (JsonNode procedure : python().ask("procedures", JsonTree.object()).get("procedures")) {
        String found = procedure.get("name").asText();
        known.add(found);
        if (found.equalsIgnoreCase(identifier.name())) return new Procedure(python(), procedure);
      }
    }
    throw Errors.analysis(
        "PROCEDURE_NOT_FOUND: there is no procedure " + identifier + "; there are " + name + ".system."
            + (known.isEmpty() ? "…, see SHOW PROCEDURES IN " + name + ".system" : String.join(", ", known)));
  }
}
