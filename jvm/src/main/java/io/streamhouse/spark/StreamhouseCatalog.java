package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.util.AbstractSet;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.BitSet;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.QueryContext;
import org.apache.spark.TaskContext;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.util.CharVarcharUtils;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.SupportsAtomicPartitionManagement;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.functions.BoundFunction;
import org.apache.spark.sql.connector.catalog.functions.ScalarFunction;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LogicalExpressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.parquet.ParquetScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.internal.connector.PredicateUtils;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A Spark catalog whose every decision is made in Python: what tables there are, what a query reads, what a write does.
 *
 * <p>A call to Python is the schema inference of the data source {@code streamhouse} with two options, an operation and
 * its arguments as JSON; the answer is JSON in the metadata of the one field of the schema that comes back. It runs in
 * Spark's planner worker, which is reused, and costs about 20 ms.
 *
 * <p>A table loaded here is pinned to one commit. Spark loads tables anew at the start of each query, because {@link
 * Table#version} is set, and uses one instance for all uses of a table within it: so a query sees one state, the newest.
 */
public class StreamhouseCatalog implements StagingTableCatalog, SupportsNamespaces, FunctionCatalog, ProcedureCatalog {
  private static final String SOURCE = "streamhouse";
  private String name;
  private Map<String, String> settings = Map.of();

  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    name = catalogName;
    settings = new HashMap<>(options.asCaseSensitiveMap());
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
        TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT, TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
  }

  // -- calls ---------------------------------------------------------------------------------------------------------

  PythonDataSourceV2 source() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(SOURCE);
    return source;
  }

  /** Settings of the catalog, what a query adds to them, and a call. */
  Map<String, String> options(Map<String, String> more) {
    Map<String, String> all = new HashMap<>(settings);
    all.putAll(more);
    return all;
  }

  static Map<String, String> call(String operation, String arguments) {
    return Map.of("__streamhouse_call", operation, "__streamhouse_args", arguments);
  }

  /**
   * What Python answers. An error is an AnalysisException with Python's text, but for the conditions that the caller
   * handles, which are thrown as {@link Refused}.
   */
  JsonNode ask(String operation, ObjectNode arguments, String... handled) {
    CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(options(call(operation, arguments.toString())));
    JsonNode reply = Json.parse(source().inferSchema(all).fields()[0].metadata().getString("json"));
    if (!reply.has("error")) return reply.get("ok");
    String condition = reply.get("error").get("condition").asText();
    String message = reply.get("error").get("message").asText();
    if (Arrays.asList(handled).contains(condition)) throw new Refused(condition, message);
    throw Errors.analysis(message);
  }

  // -- databases -----------------------------------------------------------------------------------------------------

  @Override
  public String[][] listNamespaces() {
    List<String[]> found = new ArrayList<>();
    for (JsonNode database : ask("databases", Json.object()).get("databases")) {
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
    return Json.texts(database(namespace).get("properties"));
  }

  private JsonNode database(String[] namespace) {
    return ask("database", Json.object().put("database", namespace[0]));
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata)
      throws NamespaceAlreadyExistsException {
    ObjectNode arguments = Json.object().put("database", oneName(namespace));
    arguments.set("properties", Json.object(metadata));
    try {
      ask("create_database", arguments, "DATABASE_EXISTS");
    } catch (Refused refused) {
      throw new NamespaceAlreadyExistsException(namespace);
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) throws NoSuchNamespaceException {
    ObjectNode arguments = Json.object().put("database", oneName(namespace));
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
      ask("alter_database", arguments, "DATABASE_NOT_FOUND");
    } catch (Refused refused) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade)
      throws NoSuchNamespaceException, NonEmptyNamespaceException {
    try {
      ObjectNode arguments = Json.object().put("database", oneName(namespace)).put("cascade", cascade);
      return ask("drop_database", arguments, "DATABASE_NOT_FOUND", "DATABASE_NOT_EMPTY").get("dropped").asBoolean();
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
      ObjectNode arguments = Json.object().put("database", namespace[0]);
      for (JsonNode table : ask("tables", arguments, "DATABASE_NOT_FOUND").get("tables")) {
        found.add(Identifier.of(namespace, table.asText()));
      }
    } catch (Refused refused) {
      throw new NoSuchNamespaceException(namespace);
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    return load(identifier, named(identifier));
  }

  @Override
  public Table loadTable(Identifier identifier, String version) throws NoSuchTableException {
    return load(identifier, named(identifier).put("version", version));
  }

  @Override
  public Table loadTable(Identifier identifier, long timestampMicros) throws NoSuchTableException {
    return load(identifier, named(identifier).put("timestamp_us", timestampMicros));
  }

  private Table load(Identifier identifier, ObjectNode arguments) throws NoSuchTableException {
    if (identifier.namespace().length != 1) throw new NoSuchTableException(identifier);
    try {
      JsonNode found = ask("load", arguments, "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
      if (!found.get("kind").asText().equals("table")) return new ReadableTable(this, identifier, found);
      boolean partitioned = found.get("partition_columns").size() > 0;
      return partitioned
          ? new PartitionedTable(this, identifier, found)
          : new WritableTable(this, identifier, found);
    } catch (Refused refused) {
      throw new NoSuchTableException(identifier);
    }
  }

  static ObjectNode named(Identifier identifier) {
    return Json.object()
        .put("database", String.join(".", identifier.namespace()))
        .put("table", identifier.name());
  }

  @Override
  public Table createTable(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    try {
      ask("create_table", described(identifier, info), "TABLE_EXISTS", "DATABASE_NOT_FOUND");
      return loadTable(identifier);
    } catch (NoSuchTableException error) {
      throw Errors.analysis("table " + identifier + " was dropped while it was being created");
    } catch (Refused refused) {
      if (refused.is("TABLE_EXISTS")) throw new TableAlreadyExistsException(identifier);
      throw new NoSuchNamespaceException(identifier.namespace());
    }
  }

  /** A table as Spark describes it to those who create or replace it. */
  private static ObjectNode described(Identifier identifier, TableInfo info) {
    ObjectNode arguments = named(identifier).put("schema", info.schema().json()).put("time_zone", timeZone());
    arguments.put("as_select", callers().stream().anyMatch(call -> call.contains("AsSelectExec#")));
    ArrayNode transforms = arguments.putArray("partitioning");
    for (Transform transform : info.partitions()) transforms.add(Json.transform(transform));
    Map<String, String> properties = new HashMap<>(info.properties());
    // saveAsTable and toTable without format() name Spark's default format, which nobody asked for
    if (writtenByDataFrame() && SQLConf.get().defaultDataSourceName().equals(properties.get(PROP_PROVIDER))) {
      properties.remove(PROP_PROVIDER);
    }
    arguments.set("properties", Json.object(properties));
    ArrayNode key = arguments.putArray("primary_key");
    for (Constraint constraint : info.constraints()) {
      if (!(constraint instanceof PrimaryKey)) {
        throw Errors.analysis("constraint " + constraint.toDDL() + " is not supported; leave it out");
      }
      for (NamedReference column : ((PrimaryKey) constraint).columns()) {
        key.add(String.join(".", column.fieldNames()));
      }
    }
    return arguments;
  }

  /** Where a timestamp without zone, such as that of a default, is a moment. */
  private static String timeZone() {
    return SQLConf.get().sessionLocalTimeZone();
  }

  /** CREATE TABLE … AS SELECT: the table is there before its rows are, and goes again where they fail. */
  @Override
  public StagedTable stageCreate(Identifier identifier, TableInfo info)
      throws TableAlreadyExistsException, NoSuchNamespaceException {
    return new WrittenTable(this, identifier, ((ReadableTable) createTable(identifier, info)).loaded, true);
  }

  /** The rows of a table are replaced in one commit; the table stays, with what makes it that table. */
  @Override
  public StagedTable stageReplace(Identifier identifier, TableInfo info) throws NoSuchTableException {
    try {
      JsonNode found = ask("replace_table", described(identifier, info), "TABLE_NOT_FOUND", "DATABASE_NOT_FOUND");
      return new WrittenTable(this, identifier, found, false);
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

  private static List<String> callers() {
    List<String> calls = new ArrayList<>();
    StackWalker.getInstance().forEach(frame -> calls.add(frame.getClassName() + "#" + frame.getMethodName()));
    return calls;
  }

  /** In Spark Connect the writer's plan runs later, and statements in SQL are told by who runs them. */
  private static boolean writtenByDataFrame() {
    List<String> calls = callers();
    boolean connect = calls.stream().anyMatch(call -> call.contains(".SparkConnectPlanExecution#"));
    return connect
        ? calls.stream().noneMatch(call -> call.endsWith("#executeSQL"))
        : calls.stream().anyMatch(call -> call.contains(".DataFrameWriter#") || call.contains(".DataStreamWriter#"));
  }

  @Override
  public Table alterTable(Identifier identifier, TableChange... changes) throws NoSuchTableException {
    ObjectNode arguments = named(identifier).put("time_zone", timeZone());
    ArrayNode described = arguments.putArray("changes");
    for (TableChange change : changes) described.add(Json.change(change));
    try {
      ask("alter_table", arguments, "TABLE_NOT_FOUND");
    } catch (Refused refused) {
      throw new NoSuchTableException(identifier);
    }
    return loadTable(identifier);
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
    return ask("drop_table", named(identifier).put("purge", purge)).get("dropped").asBoolean();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) throws NoSuchTableException, TableAlreadyExistsException {
    String[] namespace = to.namespace(); // Spark leaves the catalog's name in it where the statement says it
    if (namespace.length == 2 && namespace[0].equals(name)) namespace = new String[] {namespace[1]};
    ObjectNode arguments = named(from).put("to_database", oneName(namespace)).put("to_table", to.name());
    try {
      ask("rename_table", arguments, "TABLE_NOT_FOUND", "TABLE_EXISTS");
    } catch (Refused refused) {
      if (refused.is("TABLE_EXISTS")) throw new TableAlreadyExistsException(to);
      throw new NoSuchTableException(from);
    }
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
    for (JsonNode procedure : ask("procedures", Json.object()).get("procedures")) {
      found.add(Identifier.of(new String[] {"system"}, procedure.get("name").asText()));
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier identifier) {
    List<String> known = new ArrayList<>();
    if (Arrays.equals(identifier.namespace(), new String[] {"system"})) {
      for (JsonNode procedure : ask("procedures", Json.object()).get("procedures")) {
        known.add(procedure.get("name").asText());
        if (procedure.get("name").asText().equalsIgnoreCase(identifier.name())) return new Procedure(this, procedure);
      }
    }
    throw Errors.analysis(
        "PROCEDURE_NOT_FOUND: there is no procedure " + identifier + "; there are " + name + ".system."
            + (known.isEmpty() ? "…, see SHOW PROCEDURES IN " + name + ".system" : String.join(", ", known)));
  }
}

/** An error of Python's that the caller turns into one that Spark knows. */
final class Refused extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String condition;

  Refused(String condition, String message) {
    super(message);
    this.condition = condition;
  }

  boolean is(String name) {
    return condition.equals(name);
  }
}

final class Errors {
  private static final Pattern TYPED = Pattern.compile("(?m)^streamhouse_spark\\.errors\\.\\w+: (.+)$");
  private static final Pattern CONDITION = Pattern.compile("^([A-Z][A-Z_]+): ");

  private Errors() {}

  /** An error that Spark shows by its text alone. Declared as unchecked, because Spark's own methods throw it so. */
  static RuntimeException analysis(String message) {
    return analysis(message, null);
  }

  /**
   * Does something in a Python worker, on the driver or in a task. Of our own errors the text is shown, in one line;
   * Spark's, with the traceback, is the cause.
   */
  static <T> T plainly(Callable<T> action) {
    try {
      return action.call();
    } catch (Exception error) { // Scala throws checked ones without saying so
      String text = null;
      for (Throwable cause = error; cause != null && text == null; cause = cause.getCause()) {
        Matcher found = TYPED.matcher(String.valueOf(cause.getMessage()));
        while (found.find()) text = found.group(1);
      }
      throw text == null ? Errors.<RuntimeException>unchecked(error) : analysis(text, error);
    }
  }

  /** As the other one, of what gives nothing. */
  static void plainly(Step step) {
    plainly(
        () -> {
          step.run();
          return null;
        });
  }

  interface Step {
    void run() throws Exception;
  }

  /** With the condition that the text begins with: of a task, Spark then shows the error itself, and not the job's. */
  private static RuntimeException analysis(String message, Throwable cause) {
    Matcher condition = CONDITION.matcher(message);
    AnalysisException error =
        new AnalysisException(
            message,
            Option.empty(),
            Option.empty(),
            Option.apply(cause),
            condition.find() ? Option.apply(condition.group(1)) : Option.empty(),
            scala.collection.immutable.Map$.MODULE$.empty(),
            new QueryContext[0]);
    return Errors.<RuntimeException>unchecked(error);
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
    throw (E) error;
  }
}

/** JSON, to and from Spark's values in their internal form. */
final class Json {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}

  static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  static ObjectNode object(Map<String, String> texts) {
    ObjectNode node = object();
    new TreeMap<>(texts).forEach(node::put);
    return node;
  }

  static ArrayNode array() {
    return MAPPER.createArrayNode();
  }

  static JsonNode parse(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("not JSON: " + text, error);
    }
  }

  static Map<String, String> texts(JsonNode node) {
    Map<String, String> found = new HashMap<>();
    node.properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    return found;
  }

  static List<String> list(JsonNode node) {
    List<String> found = new ArrayList<>();
    node.forEach(item -> found.add(item.asText()));
    return found;
  }

  static ObjectNode transform(Transform transform) {
    ObjectNode node = object().put("transform", transform.name());
    ArrayNode columns = node.putArray("columns");
    ArrayNode arguments = node.putArray("arguments");
    for (Expression argument : transform.arguments()) {
      if (argument instanceof NamedReference) {
        ArrayNode path = columns.addArray();
        for (String part : ((NamedReference) argument).fieldNames()) path.add(part);
      } else if (argument instanceof Literal) {
        arguments.addPOJO(((Literal<?>) argument).value());
      } else {
        arguments.add(argument.toString());
      }
    }
    return node;
  }

  static Transform transform(JsonNode node) {
    List<Expression> arguments = new ArrayList<>();
    for (JsonNode argument : node.get("arguments")) arguments.add(Expressions.literal(argument.asInt()));
    for (JsonNode column : node.get("columns")) arguments.add(FieldReference.column(column.get(0).asText()));
    return transform(node.get("transform").asText(), arguments.toArray(new Expression[0]));
  }

  /** Of references, not of texts: {@link Expressions#identity} and {@code bucket} take names for SQL, and parse them. */
  static Transform transform(String name, Expression... arguments) {
    if (name.equals("identity")) return LogicalExpressions.identity((NamedReference) arguments[0]);
    return Expressions.apply(name, arguments);
  }

  static ObjectNode change(TableChange change) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      return object().put("change", "set_property").put("name", set.property()).put("value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty) {
      return object()
          .put("change", "remove_property")
          .put("name", ((TableChange.RemoveProperty) change).property());
    }
    ObjectNode node = object();
    if (change instanceof TableChange.ColumnChange) {
      ArrayNode path = node.putArray("path");
      for (String part : ((TableChange.ColumnChange) change).fieldNames()) path.add(part);
    }
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      node.put("change", "add_column").put("type", add.dataType().json()).put("nullable", add.isNullable());
      node.put("comment", add.comment());
      node.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
      if (add.position() instanceof TableChange.First) node.put("position", "first");
      if (add.position() instanceof TableChange.After) {
        node.putObject("position").put("after", ((TableChange.After) add.position()).column());
      }
      return node;
    }
    if (change instanceof TableChange.UpdateColumnComment) {
      return node.put("change", "update_comment")
          .put("comment", ((TableChange.UpdateColumnComment) change).newComment());
    }
    if (change instanceof TableChange.RenameColumn) {
      return node.put("change", "rename_column").put("name", ((TableChange.RenameColumn) change).newName());
    }
    if (change instanceof TableChange.UpdateColumnType) {
      return node.put("change", "update_type")
          .put("type", ((TableChange.UpdateColumnType) change).newDataType().json());
    }
    if (change instanceof TableChange.UpdateColumnNullability) {
      return node.put("change", "update_nullability")
          .put("nullable", ((TableChange.UpdateColumnNullability) change).nullable());
    }
    if (change instanceof TableChange.DeleteColumn) return node.put("change", "delete_column");
    if (change instanceof TableChange.UpdateColumnPosition) return node.put("change", "update_position");
    if (change instanceof TableChange.UpdateColumnDefaultValue) {
      String sql = ((TableChange.UpdateColumnDefaultValue) change).newDefaultValue();
      return node.put("change", "update_default").put("default", sql == null || sql.isEmpty() ? null : sql);
    }
    if (change instanceof TableChange.AddConstraint) {
      return node.put("change", "add_constraint").put("text", ((TableChange.AddConstraint) change).constraint().toDDL());
    }
    if (change instanceof TableChange.DropConstraint) {
      return node.put("change", "drop_constraint").put("text", ((TableChange.DropConstraint) change).name());
    }
    return node.put("change", "other").put("text", change.getClass().getSimpleName());
  }

  /** A predicate as a tree; what has no form here is named as unknown, and Python takes it for anything. */
  static ObjectNode expression(Expression expression) {
    if (expression instanceof NamedReference) {
      ObjectNode node = object();
      ArrayNode path = node.putArray("column");
      for (String part : ((NamedReference) expression).fieldNames()) path.add(part);
      return node;
    }
    if (expression instanceof Literal) {
      Literal<?> literal = (Literal<?>) expression;
      ObjectNode node = object().put("type", literal.dataType().json());
      JsonNode value = value(literal.value());
      return value == null ? object().put("unknown", literal.toString()) : (ObjectNode) node.set("literal", value);
    }
    if (expression instanceof GeneralScalarExpression) {
      ObjectNode node = object().put("op", ((GeneralScalarExpression) expression).name());
      ArrayNode children = node.putArray("children");
      addChildren((GeneralScalarExpression) expression, children);
      return node;
    }
    return object().put("unknown", expression.toString());
  }

  /** A chain of ANDs or ORs as one: each of its links would nest deeper than JSON is read in Python. */
  private static void addChildren(GeneralScalarExpression expression, ArrayNode children) {
    boolean chains = expression.name().equals("AND") || expression.name().equals("OR");
    for (Expression child : expression.children()) {
      boolean continues = chains && child instanceof GeneralScalarExpression
          && ((GeneralScalarExpression) child).name().equals(expression.name());
      if (continues) addChildren((GeneralScalarExpression) child, children);
      else children.add(expression(child));
    }
  }

  /** A value in Spark's internal form; null where its type has none here. */
  static JsonNode value(Object value) {
    ArrayNode holder = array();
    if (value == null) return holder.addNull().get(0);
    if (value instanceof Boolean) return holder.add((Boolean) value).get(0);
    if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long) {
      return holder.add(((Number) value).longValue()).get(0);
    }
    if (value instanceof Float || value instanceof Double) {
      double number = ((Number) value).doubleValue();
      return Double.isFinite(number) ? holder.add(number).get(0) : holder.add(Double.toString(number)).get(0);
    }
    if (value instanceof byte[]) return holder.add(Base64.getEncoder().encodeToString((byte[]) value)).get(0);
    if (value instanceof UTF8String || value instanceof Decimal) return holder.add(value.toString()).get(0);
    return null;
  }

  /** A value of an answer in Spark's internal form. */
  static Object value(JsonNode node, DataType type) {
    if (node == null || node.isNull()) return null;
    if (type instanceof BooleanType) return node.asBoolean();
    if (type instanceof ByteType) return (byte) node.asInt();
    if (type instanceof ShortType) return (short) node.asInt();
    if (type instanceof IntegerType || type instanceof DateType) return node.asInt();
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) {
      return node.asLong();
    }
    if (type instanceof FloatType) return node.isTextual() ? Float.valueOf(node.asText()) : (float) node.asDouble();
    if (type instanceof DoubleType) return node.isTextual() ? Double.valueOf(node.asText()) : node.asDouble();
    if (type instanceof DecimalType) {
      DecimalType decimal = (DecimalType) type;
      return Decimal.apply(new BigDecimal(node.asText()), decimal.precision(), decimal.scale());
    }
    if (type instanceof BinaryType) return Base64.getDecoder().decode(node.asText());
    if (type instanceof StringType) return UTF8String.fromString(node.asText());
    throw new IllegalStateException("no values of type " + type + " in answers");
  }

  static InternalRow row(JsonNode values, StructType schema) {
    Object[] row = new Object[schema.length()];
    for (int i = 0; i < row.length; i++) row[i] = value(values.get(i), schema.fields()[i].dataType());
    return new GenericInternalRow(row);
  }
}

/** Rows that Python answered with. */
final class AnsweredRows implements LocalScan {
  private final StructType schema;
  private final InternalRow[] rows;

  AnsweredRows(StructType schema, InternalRow[] rows) {
    this.schema = schema;
    this.rows = rows;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public InternalRow[] rows() {
    return rows;
  }
}

final class Procedure implements UnboundProcedure, BoundProcedure {
  private final StreamhouseCatalog catalog;
  private final JsonNode described;

  Procedure(StreamhouseCatalog catalog, JsonNode described) {
    this.catalog = catalog;
    this.described = described;
  }

  @Override
  public String name() {
    return described.get("name").asText();
  }

  @Override
  public String description() {
    return described.get("description").asText();
  }

  @Override
  public BoundProcedure bind(StructType inputs) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    List<ProcedureParameter> found = new ArrayList<>();
    for (JsonNode parameter : described.get("parameters")) {
      ProcedureParameter.Builder builder =
          ProcedureParameter.in(parameter.get("name").asText(), DataType.fromJson(parameter.get("type").asText()))
              .comment(parameter.get("comment").asText());
      JsonNode defaultValue = parameter.get("default");
      if (!defaultValue.isNull()) builder = builder.defaultValue(defaultValue.asText());
      found.add(builder.build());
    }
    return found.toArray(new ProcedureParameter[0]);
  }

  @Override
  public Iterator<Scan> call(InternalRow inputs) {
    ObjectNode arguments = Json.object().put("name", name());
    ObjectNode given = arguments.putObject("arguments");
    int position = 0;
    for (ProcedureParameter parameter : parameters()) {
      Object value = inputs.isNullAt(position) ? null : inputs.get(position, parameter.dataType());
      position++;
      given.set(parameter.name(), Json.value(value));
    }
    JsonNode answer = catalog.ask("call_procedure", arguments);
    StructType schema = (StructType) DataType.fromJson(answer.get("schema").asText());
    List<InternalRow> rows = new ArrayList<>();
    for (JsonNode row : answer.get("rows")) rows.add(Json.row(row, schema));
    return List.<Scan>of(new AnsweredRows(schema, rows.toArray(new InternalRow[0]))).iterator();
  }
}

// -- tables ----------------------------------------------------------------------------------------------------------

/** A name that can be read: the table, its lake, its changelog, a system or metadata table; at one pinned state. */
class ReadableTable implements SupportsRead, SupportsMetadataColumns {
  final StreamhouseCatalog catalog;
  final Identifier identifier;
  final JsonNode loaded;
  /** As it was declared, with CHAR(n) and VARCHAR(n). */
  private final StructType declared;

  /** As rows have it: texts of a length are texts, and their metadata tells Spark the length. */
  final StructType schema;

  ReadableTable(StreamhouseCatalog catalog, Identifier identifier, JsonNode loaded) {
    this.catalog = catalog;
    this.identifier = identifier;
    this.loaded = loaded;
    this.declared = (StructType) DataType.fromJson(loaded.get("schema").asText());
    this.schema = CharVarcharUtils.replaceCharVarcharWithStringInSchema(declared);
  }

  /** The name as the data source takes it. */
  String tableName() {
    return loaded.get("name").asText();
  }

  @Override
  public String name() {
    return catalog.name() + "." + tableName();
  }

  @Override
  public String id() {
    return loaded.get("uuid").asText();
  }

  @Override
  public String version() {
    return loaded.get("version").asText();
  }

  @Override
  public StructType schema() {
    return isAskedBy(".v2.Describe") ? declared : schema; // a stream's plan must not have types with a length
  }

  /** Whether a class whose name has this in it is among the callers. */
  private static boolean isAskedBy(String name) {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().contains(name)));
  }

  @Override
  public Transform[] partitioning() {
    List<Transform> found = new ArrayList<>();
    for (JsonNode transform : loaded.get("partitioning")) found.add(Json.transform(transform));
    return found.toArray(new Transform[0]);
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> found = Json.texts(loaded.get("properties"));
    if (isAskedBy("ShowCreateTableExec")) found.keySet().removeIf(key -> key.startsWith("status.") || key.equals(TableCatalog.PROP_LOCATION));
    return found;
  }

  boolean hasKind(String kind) {
    return loaded.get("kind").asText().equals(kind);
  }

  @Override
  public Set<TableCapability> capabilities() {
    return hasKind("changelog")
        ? EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ)
        : EnumSet.of(TableCapability.BATCH_READ);
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    List<MetadataColumn> found = new ArrayList<>();
    for (JsonNode column : loaded.get("metadata_columns")) found.add(new HiddenColumn(column));
    return found.toArray(new MetadataColumn[0]);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new TableScanBuilder(this, options.asCaseSensitiveMap(), null);
  }

  /** The same name at the same state has the same rows: so Spark finds what it has cached. */
  @Override
  public boolean equals(Object other) {
    if (other == null || getClass() != other.getClass()) return false;
    ReadableTable table = (ReadableTable) other;
    return name().equals(table.name()) && loaded.get("pin").equals(table.loaded.get("pin"));
  }

  @Override
  public int hashCode() {
    return Objects.hash(name(), loaded.get("pin"));
  }

  /** Refuses options of the query that cannot be. */
  void checkOptions(String mode, Map<String, String> options) {
    if (options.isEmpty()) return;
    ObjectNode arguments = Json.object().put("name", tableName()).put("mode", mode);
    ObjectNode given = arguments.putObject("options");
    options.forEach(given::put);
    catalog.ask("check_options", arguments);
  }

  /** The bucket key's column where buckets are decided by exactly one, else null. */
  String bucketColumn() {
    JsonNode buckets = loaded.get("buckets");
    return buckets.isNull() || buckets.get("key").size() != 1 ? null : buckets.get("key").get(0).asText();
  }

  int bucketCount() {
    return loaded.get("buckets").get("count").asInt();
  }
}

final class HiddenColumn implements MetadataColumn {
  private final JsonNode described;

  HiddenColumn(JsonNode described) {
    this.described = described;
  }

  @Override
  public String name() {
    return described.get("name").asText();
  }

  @Override
  public DataType dataType() {
    return DataType.fromJson(described.get("type").asText());
  }

  @Override
  public boolean isNullable() {
    return described.get("nullable").asBoolean();
  }

  @Override
  public String comment() {
    return described.path("comment").asText("");
  }
}

class WritableTable extends ReadableTable implements SupportsWrite, TruncatableTable, SupportsRowLevelOperations {
  WritableTable(StreamhouseCatalog catalog, Identifier identifier, JsonNode loaded) {
    super(catalog, identifier, loaded);
  }

  @Override
  public Set<TableCapability> capabilities() {
    EnumSet<TableCapability> found =
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.BATCH_WRITE,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE,
            TableCapability.OVERWRITE_BY_FILTER, // these two the write refuses, which says why
            TableCapability.OVERWRITE_DYNAMIC,
            // WITH SCHEMA EVOLUTION: Spark asks for ALTER TABLE first, and then plans by the columns that there are.
            TableCapability.AUTOMATIC_SCHEMA_EVOLUTION);
    return loaded.get("streams_rows").asBoolean() ? found : new WithoutStreams(this, found);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    WriteBuilder inner = writer(info, info.schema(), Map.of());
    return loaded.get("takes_updates").asBoolean()
        ? new UpdatingWriteBuilder(this, info, inner)
        : new TableWriteBuilder(this, info, inner);
  }

  /** Whether rows of this schema can be clustered by bucket. Those of a stream without the key cannot: Python refuses. */
  boolean clusters(StructType written) {
    String key = bucketColumn();
    return key != null && bucketCount() > 1 && Arrays.stream(written.fieldNames()).anyMatch(key::equalsIgnoreCase);
  }

  /** Our data source's own writer, for rows of this schema. */
  WriteBuilder writer(LogicalWriteInfo info, StructType written, Map<String, String> more) {
    Map<String, String> options = catalog.options(info.options().asCaseSensitiveMap());
    options.put("path", tableName());
    options.put("__streamhouse_uuid", id());
    if (clusters(written)) options.put("__streamhouse_clustered", "true");
    options.putAll(more);
    SupportsWrite source = (SupportsWrite) catalog.source().getTable(written, new Transform[0], options);
    return source.newWriteBuilder(new WriteInfo(info, written, options));
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new KeyedOperation(this, info);
  }

  @Override
  public boolean truncateTable() {
    catalog.ask("truncate_table", StreamhouseCatalog.named(identifier).put("uuid", id()));
    return true;
  }
}

/**
 * What a table with a primary key can: no stream of its rows, only one of their changes. Spark asks for that by name, when
 * it analyzes a stream and never else, and would say only that there is none.
 */
final class WithoutStreams extends AbstractSet<TableCapability> {
  private final WritableTable table;
  private final Set<TableCapability> others;

  WithoutStreams(WritableTable table, Set<TableCapability> all) {
    this.table = table;
    this.others = EnumSet.copyOf(all);
    others.remove(TableCapability.MICRO_BATCH_READ);
  }

  @Override
  public boolean contains(Object capability) {
    if (capability != TableCapability.MICRO_BATCH_READ) return others.contains(capability);
    String database = table.identifier.namespace()[0];
    throw Errors.analysis(
        "INVALID_OPTION: " + table.tableName() + " has a primary key, so that its log holds changes: a stream reads them"
            + " as " + table.catalog.name() + "." + database + ".`" + table.identifier.name() + "$changelog`; a batch"
            + " read gives the current rows");
  }

  @Override
  public Iterator<TableCapability> iterator() {
    return Collections.unmodifiableSet(others).iterator();
  }

  @Override
  public int size() {
    return others.size();
  }
}

/** A table that one statement creates or replaces, and fills. */
final class WrittenTable extends WritableTable implements StagedTable {
  private final boolean isNew;
  private boolean hasRows;

  WrittenTable(StreamhouseCatalog catalog, Identifier identifier, JsonNode loaded, boolean isNew) {
    super(catalog, identifier, loaded);
    this.isNew = isNew;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    hasRows = true;
    TableWriteBuilder builder = (TableWriteBuilder) super.newWriteBuilder(info);
    return isNew ? builder : builder.truncate();
  }

  /** The rows committed themselves. */
  @Override
  public void commitStagedChanges() {
    if (isNew || hasRows) return;
    throw Errors.analysis(
        "table " + tableName() + ": REPLACE TABLE without AS SELECT is not supported; use TRUNCATE TABLE to remove its "
            + "rows, ALTER TABLE to change it, or DROP TABLE and CREATE TABLE");
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return new CustomTaskMetric[0];
  }

  @Override
  public void abortStagedChanges() {
    if (isNew) catalog.dropTable(identifier);
  }
}

final class PartitionedTable extends WritableTable implements SupportsAtomicPartitionManagement {
  PartitionedTable(StreamhouseCatalog catalog, Identifier identifier, JsonNode loaded) {
    super(catalog, identifier, loaded);
  }

  @Override
  public StructType partitionSchema() {
    StructType found = new StructType();
    for (String column : Json.list(loaded.get("partition_columns"))) found = found.add(schema.apply(column));
    return found;
  }

  @Override
  public InternalRow[] listPartitionIdentifiers(String[] names, InternalRow values) {
    ObjectNode arguments = StreamhouseCatalog.named(identifier);
    ArrayNode namesNode = arguments.putArray("names");
    ArrayNode valuesNode = arguments.putArray("values");
    for (int i = 0; i < names.length; i++) {
      DataType type = schema.apply(names[i]).dataType();
      namesNode.add(names[i]);
      valuesNode.add(Json.value(values.isNullAt(i) ? null : values.get(i, type)));
    }
    List<InternalRow> found = new ArrayList<>();
    for (JsonNode partition : catalog.ask("partition_values", arguments).get("partitions")) {
      found.add(Json.row(partition, partitionSchema()));
    }
    return found.toArray(new InternalRow[0]);
  }

  @Override
  public Map<String, String> loadPartitionMetadata(InternalRow partition) {
    return Map.of();
  }

  @Override
  public void createPartitions(InternalRow[] partitions, Map<String, String>[] properties) {
    throw Errors.analysis("a partition exists when a row has its values: insert rows instead of ADD PARTITION");
  }

  @Override
  public boolean dropPartitions(InternalRow[] partitions) {
    ObjectNode arguments = StreamhouseCatalog.named(identifier).put("uuid", id());
    ArrayNode values = arguments.putArray("partitions");
    StructField[] columns = partitionSchema().fields();
    for (InternalRow partition : partitions) {
      ArrayNode row = values.addArray();
      for (int i = 0; i < columns.length; i++) {
        row.add(Json.value(partition.isNullAt(i) ? null : partition.get(i, columns[i].dataType())));
      }
    }
    catalog.ask("drop_partitions", arguments);
    return true;
  }

  @Override
  public void replacePartitionMetadata(InternalRow partition, Map<String, String> properties) {
    throw Errors.analysis("partitions have no properties");
  }
}

// -- writes ----------------------------------------------------------------------------------------------------------

final class WriteInfo implements LogicalWriteInfo {
  private final LogicalWriteInfo info;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;

  WriteInfo(LogicalWriteInfo info, StructType schema, Map<String, String> options) {
    this.info = info;
    this.schema = schema;
    this.options = new CaseInsensitiveStringMap(options);
  }

  @Override
  public CaseInsensitiveStringMap options() {
    return options;
  }

  @Override
  public String queryId() {
    return info.queryId();
  }

  @Override
  public StructType schema() {
    return schema;
  }
}

class TableWriteBuilder implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private static final String INSTEAD =
      "; DELETE the rows and INSERT the new ones, use MERGE, or replace all rows with INSERT OVERWRITE";
  private final WritableTable table;
  private final LogicalWriteInfo info;
  private WriteBuilder inner;

  TableWriteBuilder(WritableTable table, LogicalWriteInfo info, WriteBuilder inner) {
    this.table = table;
    this.info = info;
    this.inner = inner;
  }

  @Override
  public WriteBuilder truncate() {
    inner = ((SupportsTruncate) inner).truncate();
    return this;
  }

  /** REPLACE WHERE, and INSERT OVERWRITE of a partition that is named. */
  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    if (predicates.length == 0 || Arrays.stream(predicates).allMatch(AlwaysTrue.class::isInstance)) return truncate();
    throw Errors.analysis(
        "INVALID_OPTION: table " + table.tableName() + ": one write cannot replace the rows of a condition or partition ("
            + Arrays.stream(predicates).map(Predicate::toString).collect(Collectors.joining(" AND ")) + ")" + INSTEAD);
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    throw Errors.analysis(
        "INVALID_OPTION: table " + table.tableName() + ": one write cannot replace the partitions that its rows are of, as"
            + " overwritePartitions() and spark.sql.sources.partitionOverwriteMode = dynamic ask" + INSTEAD);
  }

  @Override
  public Write build() {
    return table.clusters(info.schema())
        ? new BucketedWrite(table, info, inner.build())
        : new TableWrite(table, info, inner.build());
  }
}

/** Of a table in which rows take the place of others: it takes streams of rows that change. */
final class UpdatingWriteBuilder extends TableWriteBuilder implements SupportsStreamingUpdateAsAppend {
  UpdatingWriteBuilder(WritableTable table, LogicalWriteInfo info, WriteBuilder inner) {
    super(table, info, inner);
  }
}

/** Options that cannot be are an error of the query's own; later they would be one of a Python worker. */
class TableWrite implements Write {
  final WritableTable table;
  private final LogicalWriteInfo info;
  private final Map<String, String> options;
  private final Write inner;

  TableWrite(WritableTable table, LogicalWriteInfo info, Write inner) {
    this.table = table;
    this.info = info;
    this.options = info.options().asCaseSensitiveMap();
    this.inner = inner;
  }

  @Override
  public String description() {
    return inner.description();
  }

  @Override
  public BatchWrite toBatch() {
    table.checkOptions("write", options);
    LogicalPlan merged = merged();
    if (merged == null) return new PlainBatchWrite(inner.toBatch());
    boolean readsOnce =
        Statements.leaves().stream().filter(leaf -> !leaf.equals(merged)).noneMatch(
            leaf -> Statements.mayRead(leaf, table));
    JsonNode described = KeyedOperation.described(table, RowLevelOperation.Command.MERGE, options);
    Write write = table.writer(info, info.schema(), KeyedOperation.read(described, readsOnce, null)).build();
    return new PlainBatchWrite(write.toBatch());
  }

  /**
   * The relation that is written, where this is a MERGE that only inserts; else null. Spark makes an append of it, whose
   * query reads the very relation that it appends to, and asks for no operation; an INSERT that reads the table has a
   * relation of its own for that.
   */
  private static LogicalPlan merged() {
    LogicalPlan running = Statements.running();
    if (!(running instanceof V2WriteCommand)) return null;
    V2WriteCommand command = (V2WriteCommand) running;
    LogicalPlan written = (LogicalPlan) command.table();
    return command.query().collectLeaves().exists(leaf -> leaf.equals(written)) ? written : null;
  }

  @Override
  public StreamingWrite toStreaming() {
    table.checkOptions("writeStream", options);
    if (isRealTime()) {
      throw Errors.analysis(
          "INVALID_OPTION: stream into " + table.name() + " with a real-time trigger: a batch that runs again has other "
              + "rows there, which would be dropped; use trigger(processingTime=...) or trigger(availableNow=True)");
    }
    return new PlainStreamingWrite(inner.toStreaming());
  }

  /** Whether the query that is being planned has a real-time trigger. Spark tells a sink nothing of it. */
  private static boolean isRealTime() {
    Thread thread = Thread.currentThread();
    try {
      java.lang.reflect.Field outer = thread.getClass().getDeclaredField("$outer");
      outer.setAccessible(true);
      Object execution = outer.get(thread);
      Object trigger = execution.getClass().getMethod("trigger").invoke(execution);
      return trigger.getClass().getSimpleName().equals("RealTimeTrigger");
    } catch (ReflectiveOperationException | RuntimeException e) {
      // Another Spark: real-time mode takes no sink like this one unless its list of allowed sinks is switched off.
      return "false".equals(SparkSession.active().conf().get("spark.sql.streaming.realTimeMode.allowlistCheck", "true"));
    }
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return inner.supportedCustomMetrics();
  }
}

/** Python's write; what it says on the driver and in tasks, such as that a row does not fit, is told plainly. */
final class PlainBatchWrite implements BatchWrite {
  private final BatchWrite inner;

  PlainBatchWrite(BatchWrite inner) {
    this.inner = inner;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    DataWriterFactory factory = Errors.plainly(() -> inner.createBatchWriterFactory(info));
    return new PlainWriterFactory(factory);
  }

  @Override
  public boolean useCommitCoordinator() {
    return inner.useCommitCoordinator();
  }

  @Override
  public void onDataWriterCommit(WriterCommitMessage message) {
    inner.onDataWriterCommit(message);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    Errors.plainly(() -> inner.commit(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    inner.abort(messages);
  }
}

/** As {@link PlainBatchWrite}, of a stream. */
final class PlainStreamingWrite implements StreamingWrite {
  private final StreamingWrite inner;

  PlainStreamingWrite(StreamingWrite inner) {
    this.inner = inner;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    StreamingDataWriterFactory factory = Errors.plainly(() -> inner.createStreamingWriterFactory(info));
    return new PlainStreamingWriterFactory(factory);
  }

  @Override
  public boolean useCommitCoordinator() {
    return inner.useCommitCoordinator();
  }

  @Override
  public void commit(long epoch, WriterCommitMessage[] messages) {
    Errors.plainly(() -> inner.commit(epoch, messages));
  }

  @Override
  public void abort(long epoch, WriterCommitMessage[] messages) {
    inner.abort(epoch, messages);
  }
}

final class PlainWriterFactory implements DataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory inner;

  PlainWriterFactory(DataWriterFactory inner) {
    this.inner = inner;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task) {
    DataWriter<InternalRow> writer = Errors.plainly(() -> inner.createWriter(partition, task));
    return new PlainWriter(writer);
  }
}

final class PlainStreamingWriterFactory implements StreamingDataWriterFactory {
  private static final long serialVersionUID = 1L;
  private final StreamingDataWriterFactory inner;

  PlainStreamingWriterFactory(StreamingDataWriterFactory inner) {
    this.inner = inner;
  }

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    DataWriter<InternalRow> writer = Errors.plainly(() -> inner.createWriter(partition, task, epoch));
    return new PlainWriter(writer);
  }
}

/** Python's writer in a task. */
final class PlainWriter implements DataWriter<InternalRow> {
  private final DataWriter<InternalRow> inner;

  PlainWriter(DataWriter<InternalRow> inner) {
    this.inner = inner;
  }

  @Override
  public void write(InternalRow row) {
    Errors.plainly(() -> inner.write(row));
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) {
    Errors.plainly(() -> inner.writeAll(rows));
  }

  @Override
  public WriterCommitMessage commit() {
    return Errors.plainly(inner::commit);
  }

  @Override
  public void abort() throws IOException {
    inner.abort();
  }

  @Override
  public void close() throws IOException {
    inner.close();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return inner.currentMetricsValues();
  }
}

/** A write whose tasks own whole buckets, so that a commit has few segments and tasks can make changes of upserts. */
interface ClusteredByBucket extends RequiresDistributionAndOrdering {
  WritableTable table();

  @Override
  default int requiredNumPartitions() {
    return Math.min(table().bucketCount(), Math.max(1, Parallelism.ofSession()));
  }

  @Override
  default Distribution requiredDistribution() {
    Expression[] arguments = {
      Expressions.literal(table().bucketCount()),
      Expressions.literal(requiredNumPartitions()),
      FieldReference.column(table().bucketColumn())
    };
    return Distributions.clustered(new Expression[] {Expressions.apply("slot", arguments)});
  }

  @Override
  default SortOrder[] requiredOrdering() {
    return new SortOrder[0];
  }
}

final class BucketedWrite extends TableWrite implements ClusteredByBucket {
  BucketedWrite(WritableTable table, LogicalWriteInfo info, Write inner) {
    super(table, info, inner);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}

/** The statement that is running. */
final class Statements {
  private Statements() {}

  /** Its analyzed plan; null where none is known. */
  static LogicalPlan running() {
    String id = SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    QueryExecution running = id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
    return running == null ? null : running.analyzed();
  }

  /** All that it reads, in subqueries too. */
  static List<LogicalPlan> leaves() {
    List<LogicalPlan> found = new ArrayList<>();
    LogicalPlan plan = running();
    if (plan == null) return found;
    found.addAll(CollectionConverters.asJava(plan.collectLeaves()));
    for (LogicalPlan subquery : CollectionConverters.asJava(plan.subqueriesAll())) {
      found.addAll(CollectionConverters.asJava(subquery.collectLeaves()));
    }
    return found;
  }

  /** Whether a leaf may read this table, or what is derived from it. Of the data source's own path only Python knows. */
  static boolean mayRead(LogicalPlan leaf, ReadableTable table) {
    if (!(leaf instanceof DataSourceV2Relation)) return false;
    Table read = ((DataSourceV2Relation) leaf).table();
    if (read instanceof RowLevelOperationTable) read = ((RowLevelOperationTable) read).table();
    return read instanceof PythonTable || (read instanceof ReadableTable && ((ReadableTable) read).id().equals(table.id()));
  }
}

final class Parallelism {
  private Parallelism() {}

  static int ofSession() {
    return SparkSession.active().sparkContext().defaultParallelism();
  }
}

// -- UPDATE, DELETE, MERGE -------------------------------------------------------------------------------------------

/** An operation on rows that are told by their primary key. Whether the table takes it, Python says when it begins. */
final class KeyedOperation implements SupportsDelta {
  private final WritableTable table;
  private final Command command;
  private final JsonNode described;
  private final List<TableScanBuilder> scans = new ArrayList<>();

  KeyedOperation(WritableTable table, RowLevelOperationInfo info) {
    this.table = table;
    this.command = info.command();
    this.described = described(table, command, info.options().asCaseSensitiveMap());
  }

  static JsonNode described(WritableTable table, Command command, Map<String, String> options) {
    ObjectNode arguments = Json.object().put("pin", table.loaded.get("pin").asText()).put("command", command.name());
    arguments.set("options", Json.object(options));
    return table.catalog.ask("row_level_operation", arguments);
  }

  /** What the operation read, as its writer takes it. The filters are those of its one scan; null for all rows. */
  static Map<String, String> read(JsonNode described, boolean readsOnce, Predicate[] filters) {
    ObjectNode scope = Json.object().put("reads_once", readsOnce);
    scope.set("schema_id", described.get("schema_id"));
    ArrayNode trees = scope.putArray("filters");
    if (filters != null) for (Predicate filter : filters) trees.add(Json.expression(filter));
    return Map.of("__streamhouse_read", described.get("read").asText(), "__streamhouse_scope", scope.toString());
  }

  Map<String, String> read() {
    return read(described, readsOnce(), scans.size() == 1 ? scans.get(0).pushedPredicates() : null);
  }

  /** Whether the running statement reads the table by this operation's scan and in no other way, such as a subquery. */
  boolean readsOnce() {
    int reads = 0;
    for (LogicalPlan leaf : Statements.leaves()) {
      boolean isOwn = leaf instanceof DataSourceV2Relation
          && ((DataSourceV2Relation) leaf).table() instanceof RowLevelOperationTable
          && ((RowLevelOperationTable) ((DataSourceV2Relation) leaf).table()).operation() == this;
      if (isOwn) reads++;
      else if (Statements.mayRead(leaf, table)) return false;
    }
    return reads == 1;
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public String description() {
    return "streamhouse " + command + " of " + table.tableName();
  }

  /** All scans of the table that the operation writes are of one state, and nothing else prunes them. */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    ObjectNode pinned = ((ObjectNode) table.loaded.deepCopy()).put("pin", described.get("pin").asText());
    ReadableTable read = new ReadableTable(table.catalog, table.identifier, pinned);
    TableScanBuilder scan = new TableScanBuilder(read, options.asCaseSensitiveMap(), this);
    scans.add(scan);
    return scan;
  }

  @Override
  public NamedReference[] rowId() {
    List<NamedReference> found = new ArrayList<>();
    for (String column : Json.list(described.get("row_id"))) found.add(FieldReference.column(column));
    return found.toArray(new NamedReference[0]);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    StructType written = (StructType) DataType.fromJson(described.get("schema").asText());
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        Write shown = table.writer(info, written, Map.of()).build();
        Supplier<Write> inner = () -> table.writer(info, written, read()).build();
        return table.clusters(written)
            ? new BucketedOperationWrite(table, shown, inner, written)
            : new OperationWrite(table, shown, inner, written);
      }
    };
  }
}

class OperationWrite implements DeltaWrite {
  final WritableTable table;
  private final Write shown;
  private final Supplier<Write> inner;
  private final StructType written;

  /** The writer is made when the statement runs, as it is told what else the statement reads; another one is shown. */
  OperationWrite(WritableTable table, Write shown, Supplier<Write> inner, StructType written) {
    this.table = table;
    this.shown = shown;
    this.inner = inner;
    this.written = written;
  }

  @Override
  public String description() {
    return shown.description();
  }

  @Override
  public DeltaBatchWrite toBatch() {
    return new OperationBatchWrite(new PlainBatchWrite(inner.get().toBatch()), written, table.schema.length());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return shown.supportedCustomMetrics();
  }
}

final class BucketedOperationWrite extends OperationWrite implements ClusteredByBucket {
  BucketedOperationWrite(WritableTable table, Write shown, Supplier<Write> inner, StructType written) {
    super(table, shown, inner, written);
  }

  @Override
  public WritableTable table() {
    return table;
  }
}

/** Python's writer takes rows as an iterator, Spark hands them over one by one: each task calls it once a chunk. */
final class OperationBatchWrite implements DeltaBatchWrite {
  private final BatchWrite inner;
  private final StructType written;
  private final int columns;

  OperationBatchWrite(BatchWrite inner, StructType written, int columns) {
    this.inner = inner;
    this.written = written;
    this.columns = columns;
  }

  @Override
  public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return new OperationWriterFactory(inner.createBatchWriterFactory(info), written, columns);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    inner.commit(flat(messages));
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    inner.abort(flat(messages));
  }

  private static WriterCommitMessage[] flat(WriterCommitMessage[] messages) {
    List<WriterCommitMessage> found = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (message == null) found.add(null);
      else found.addAll(((ChunkMessages) message).chunks);
    }
    return found.toArray(new WriterCommitMessage[0]);
  }
}

final class ChunkMessages implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;
  final ArrayList<WriterCommitMessage> chunks = new ArrayList<>();
}

final class OperationWriterFactory implements DeltaWriterFactory {
  private static final long serialVersionUID = 1L;
  private final DataWriterFactory inner;
  private final StructType written;
  private final int columns;

  OperationWriterFactory(DataWriterFactory inner, StructType written, int columns) {
    this.inner = inner;
    this.written = written;
    this.columns = columns;
  }

  @Override
  public DeltaWriter<InternalRow> createWriter(int partition, long task) {
    return new OperationWriter(inner, partition, task, written, columns);
  }
}

/** Rows as Python takes them: what is done, the key of the row that was read, and the columns of the one to write. */
final class OperationWriter implements DeltaWriter<InternalRow> {
  private static final int CHUNK_ROWS = 1 << 16;
  private static final long CHUNK_BYTES = 32L << 20;
  private final DataWriterFactory inner;
  private final int partition;
  private final long task;
  private final UnsafeProjection projection;
  private final InternalRow noKey;
  private final InternalRow noRow;
  private final ChunkMessages messages = new ChunkMessages();
  private final List<InternalRow> chunk = new ArrayList<>();
  private long chunkBytes;

  OperationWriter(DataWriterFactory inner, int partition, long task, StructType written, int columns) {
    this.inner = inner;
    this.partition = partition;
    this.task = task;
    this.projection = UnsafeProjection.create(written);
    this.noKey = new GenericInternalRow(written.length() - 1 - columns);
    this.noRow = new GenericInternalRow(columns);
  }

  @Override
  public void insert(InternalRow row) throws IOException {
    add("insert", noKey, row);
  }

  @Override
  public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
    add("update", id, row);
  }

  @Override
  public void delete(InternalRow metadata, InternalRow id) throws IOException {
    add("delete", id, noRow);
  }

  private void add(String kind, InternalRow id, InternalRow row) throws IOException {
    InternalRow first = new GenericInternalRow(new Object[] {UTF8String.fromString(kind)});
    UnsafeRow copy = projection.apply(new JoinedRow(first, new JoinedRow(id, row))).copy();
    chunk.add(copy);
    chunkBytes += copy.getSizeInBytes();
    if (chunk.size() < CHUNK_ROWS && chunkBytes < CHUNK_BYTES) return;
    // From now on; with a local master also for the stage's other tasks, whose changes the driver makes then.
    TaskContext.get().getLocalProperties().setProperty("streamhouse.part", "true");
    writeChunk();
  }

  private void writeChunk() throws IOException {
    if (chunk.isEmpty()) return;
    try (DataWriter<InternalRow> writer = inner.createWriter(partition, task)) {
      writer.writeAll(chunk.iterator());
      messages.chunks.add(writer.commit());
    }
    chunk.clear();
    chunkBytes = 0;
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    writeChunk();
    return messages;
  }

  /** What chunks staged is visible to nobody; cleaning takes it. */
  @Override
  public void abort() {}

  @Override
  public void close() {}
}

// -- reads -----------------------------------------------------------------------------------------------------------

final class TableScanBuilder
    implements SupportsPushDownV2Filters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownLimit,
        SupportsPushDownAggregates {
  private final ReadableTable table;
  private final Map<String, String> options;
  private final KeyedOperation operation;
  private StructType required;
  private Predicate[] predicates = new Predicate[0];
  private int limit = -1;
  private Scan answered;

  /** The operation is null where the scan is not of one. */
  TableScanBuilder(ReadableTable table, Map<String, String> options, KeyedOperation operation) {
    this.table = table;
    this.options = options;
    this.operation = operation;
    this.required = table.schema;
  }

  /** Takes all for pruning and leaves all to Spark, which applies them again. */
  @Override
  public Predicate[] pushPredicates(Predicate[] given) {
    predicates = given;
    return given;
  }

  @Override
  public Predicate[] pushedPredicates() {
    return predicates;
  }

  @Override
  public void pruneColumns(StructType wanted) {
    required = new StructType();
    Map<String, StructField> whole = new HashMap<>(); // nested fields are read with the column that they are in
    for (StructField field : table.schema.fields()) whole.put(field.name(), field);
    for (StructField field : wanted.fields()) required = required.add(whole.getOrDefault(field.name(), field));
  }

  @Override
  public boolean pushLimit(int rows) {
    limit = rows;
    return true;
  }

  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return described(aggregation) != null;
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    ArrayNode functions = described(aggregation);
    if (functions == null) return false;
    ObjectNode arguments = Json.object().put("pin", table.loaded.get("pin").asText());
    arguments.set("options", Json.object(options));
    arguments.set("aggregates", functions);
    JsonNode row = table.catalog.ask("aggregate", arguments).get("row");
    if (row == null || row.isNull()) return false;
    StructType schema = new StructType();
    for (int i = 0; i < functions.size(); i++) {
      JsonNode column = functions.get(i).get("column");
      boolean counts = functions.get(i).get("function").asText().startsWith("count");
      schema = schema.add("c" + i, counts ? DataTypes.LongType : table.schema.apply(column.asText()).dataType());
    }
    answered = new AnsweredRows(schema, new InternalRow[] {Json.row(row, schema)});
    return true;
  }

  /** The functions as Python takes them; null where there is one that metadata can never answer. */
  private ArrayNode described(Aggregation aggregation) {
    if (aggregation.groupByExpressions().length > 0 || predicates.length > 0) return null;
    ArrayNode functions = Json.array();
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      Expression column = function.children().length == 1 ? function.children()[0] : null;
      String name =
          function instanceof CountStar ? "count_star"
              : function instanceof Count && !((Count) function).isDistinct() ? "count"
              : function instanceof Min ? "min"
              : function instanceof Max ? "max"
              : null;
      if (name == null) return null;
      ObjectNode node = functions.addObject().put("function", name);
      if (function instanceof CountStar) {
        node.putNull("column");
        continue;
      }
      if (!(column instanceof NamedReference) || ((NamedReference) column).fieldNames().length != 1) return null;
      String columnName = ((NamedReference) column).fieldNames()[0];
      if (!Arrays.asList(table.schema.fieldNames()).contains(columnName)) return null;
      node.put("column", columnName);
    }
    return functions;
  }

  @Override
  public Scan build() {
    if (answered != null) return answered;
    return operation == null
        ? new FilteredTableScan(table, options, required, predicates, limit)
        : new TableScan(table, options, required, predicates, limit, operation);
  }
}

/** One read of a pinned table: files for Spark's own Parquet reader, and groups that Python reads as Arrow batches. */
class TableScan implements Scan, Batch, SupportsReportStatistics, SupportsReportPartitioning {
  final ReadableTable table;
  final StructType required;
  final List<Predicate> predicates;
  private final Map<String, String> options;
  private final int limit;
  private final KeyedOperation operation;
  JsonNode plan;
  private boolean streaming;

  TableScan(
      ReadableTable table,
      Map<String, String> options,
      StructType required,
      Predicate[] predicates,
      int limit,
      KeyedOperation operation) {
    this.operation = operation;
    this.table = table;
    this.options = options;
    this.required = required;
    this.predicates = new ArrayList<>(Arrays.asList(predicates));
    this.limit = limit;
  }

  private ObjectNode request() {
    ObjectNode request = Json.object().put("pin", table.loaded.get("pin").asText());
    ArrayNode columns = request.putArray("columns");
    for (String column : required.fieldNames()) columns.add(column);
    ArrayNode filters = request.putArray("filters");
    for (Predicate predicate : predicates) filters.add(Json.expression(predicate));
    request.put("limit", limit < 0 ? null : (Integer) limit);
    request.set("options", Json.object(options));
    request.put("parallelism", Parallelism.ofSession());
    request.putArray("native_schemes").add("file");
    if (operation != null) request.put("reads_once", operation.readsOnce());
    return request;
  }

  private JsonNode plan() {
    if (plan == null) plan = table.catalog.ask("plan", request());
    return plan;
  }

  @Override
  public StructType readSchema() {
    return required;
  }

  @Override
  public String description() {
    return "streamhouse " + table.tableName() + " " + Arrays.toString(required.fieldNames()) + ", filters "
        + predicates + (limit < 0 ? "" : ", limit " + limit);
  }

  @Override
  public Statistics estimateStatistics() {
    JsonNode known = streaming ? table.loaded : plan();
    OptionalLong rows = known.path("rows").isNumber() ? OptionalLong.of(known.get("rows").asLong()) : OptionalLong.empty();
    OptionalLong bytes =
        known.path("bytes").isNumber() ? OptionalLong.of(known.get("bytes").asLong()) : OptionalLong.empty();
    return new Statistics() {
      @Override
      public OptionalLong sizeInBytes() {
        return bytes;
      }

      @Override
      public OptionalLong numRows() {
        return rows;
      }
    };
  }

  private boolean keyed() {
    return plan().get("keyed").asBoolean();
  }

  @Override
  public Partitioning outputPartitioning() {
    int groups = plan().get("native").size() + plan().get("hot").size();
    if (!keyed()) return new UnknownPartitioning(groups);
    Expression key =
        LogicalExpressions.bucket(
            table.bucketCount(), new NamedReference[] {FieldReference.column(table.bucketColumn())});
    return new KeyGroupedPartitioning(new Expression[] {key}, groups);
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    streaming = true;
    table.checkOptions("readStream", options);
    Map<String, String> all = table.catalog.options(options);
    all.put("path", table.tableName());
    all.put("__streamhouse_uuid", table.id());
    return read(streamed(), all).toMicroBatchStream(checkpoint);
  }

  /**
   * The columns of a stream. Spark asks it for none by name: it adds the hidden columns to the output behind the others
   * where a query selects one, and finds them by their places. So they are always there; Spark drops what is too much.
   */
  private StructType streamed() {
    StructType found = table.schema;
    for (MetadataColumn hidden : table.metadataColumns()) found = found.add(hidden.name(), hidden.dataType(), true);
    return found;
  }

  private Scan read(StructType schema, Map<String, String> all) {
    SupportsRead inner = (SupportsRead) table.catalog.source().getTable(schema, new Transform[0], all);
    return inner.newScanBuilder(new CaseInsensitiveStringMap(all)).build();
  }

  private Batch hot() {
    String text = plan().get("read").asText();
    Map<String, String> all = table.catalog.options(StreamhouseCatalog.call("read", text));
    return read(new StructType().add("batch", DataTypes.BinaryType, true), all).toBatch();
  }

  private Batch hotBatch; // its partitions and its reader factory belong together

  @Override
  public InputPartition[] planInputPartitions() {
    boolean keyed = keyed();
    List<InputPartition> found = new ArrayList<>();
    for (JsonNode group : plan().get("native")) {
      found.add(withKey(nativeFiles(found.size(), group.get("files")), group, keyed));
    }
    JsonNode hotGroups = plan().get("hot");
    if (hotGroups.size() > 0) {
      hotBatch = hot();
      InputPartition[] hot = hotBatch.planInputPartitions();
      if (hot.length != hotGroups.size()) {
        throw new IllegalStateException("planned " + hotGroups.size() + " groups, found " + hot.length);
      }
      for (int i = 0; i < hot.length; i++) found.add(withKey(hot[i], hotGroups.get(i), keyed));
    }
    return found.toArray(new InputPartition[0]);
  }

  private static InputPartition withKey(InputPartition partition, JsonNode group, boolean keyed) {
    return keyed ? new BucketPartition(partition, group.get("bucket").asInt()) : partition;
  }

  private static FilePartition nativeFiles(int index, JsonNode files) {
    List<PartitionedFile> found = new ArrayList<>();
    for (JsonNode file : files) {
      found.add(
          new PartitionedFile(
              InternalRow.empty(),
              SparkPath.fromUrlString(file.get("path").asText()),
              file.get("start").asLong(),
              file.get("length").asLong(),
              new String[0],
              0L,
              file.get("size").asLong(),
              scala.collection.immutable.Map$.MODULE$.empty()));
    }
    return new FilePartition(index, found.toArray(new PartitionedFile[0]));
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    boolean hasHot = plan().get("hot").size() > 0;
    if (hasHot && hotBatch == null) planInputPartitions();
    boolean hasFiles = false;
    for (JsonNode group : plan().get("native")) hasFiles |= group.get("files").size() > 0;
    PartitionReaderFactory parquet = hasFiles ? parquetFactory() : null;
    return new MixedReaderFactory(hasHot ? hotBatch.createReaderFactory() : null, parquet, required.length());
  }

  /** Spark's own reader, for files that are given to it: it lists nothing and infers nothing. */
  private PartitionReaderFactory parquetFactory() {
    Map<String, String> strict = new HashMap<>();
    strict.put("paths", "[]");
    strict.put("__globPaths__", "false");
    strict.put("recursiveFileLookup", "true");
    strict.put("mergeSchema", "false");
    strict.put("ignoreMissingFiles", "false");
    strict.put("ignoreCorruptFiles", "false");
    strict.put("datetimeRebaseMode", "CORRECTED");
    strict.put("int96RebaseMode", "CORRECTED");
    strict.put("parquet.page.verify-checksum.enabled", "true"); // a flipped bit is an error, not another value
    SupportsRead parquet = (SupportsRead) new ParquetDataSourceV2().getTable(table.schema, new Transform[0], strict);
    ParquetScanBuilder builder = (ParquetScanBuilder) parquet.newScanBuilder(new CaseInsensitiveStringMap(strict));
    builder.pruneColumns(required);
    List<Filter> filters = new ArrayList<>();
    for (Predicate predicate : predicates) {
      if (comparesFloats(predicate)) continue;
      Filter filter = whole(predicate);
      if (filter != null) filters.add(filter);
    }
    builder.pushedDataFilters_$eq(builder.pushDataFilters(filters.toArray(new Filter[0])));
    return builder.build().toBatch().createReaderFactory();
  }

  /** The predicate as Parquet takes it, or null: of an OR, Spark's own conversion gives the side that it understands. */
  private static Filter whole(Expression expression) {
    if (!(expression instanceof Predicate)) return null;
    Predicate predicate = (Predicate) expression;
    Filter[] children = new Filter[predicate.children().length];
    switch (predicate.name()) {
      case "AND":
      case "OR":
      case "NOT":
        for (int i = 0; i < children.length; i++) {
          children[i] = whole(predicate.children()[i]);
          if (children[i] == null) return null;
        }
        break;
      default:
        Option<Filter> leaf = PredicateUtils.toV1(predicate);
        return leaf.isDefined() ? leaf.get() : null;
    }
    if (children.length == 1) return new org.apache.spark.sql.sources.Not(children[0]);
    return predicate.name().equals("AND")
        ? new org.apache.spark.sql.sources.And(children[0], children[1])
        : new org.apache.spark.sql.sources.Or(children[0], children[1]);
  }

  /** Parquet statistics leave NaN out, which Spark takes for the greatest number: they would hide its rows. */
  private boolean comparesFloats(Predicate predicate) {
    for (NamedReference column : predicate.references()) {
      DataType type = table.schema;
      for (String name : column.fieldNames()) {
        if (!(type instanceof StructType) || !Arrays.asList(((StructType) type).fieldNames()).contains(name)) return true;
        type = ((StructType) type).apply(name).dataType();
      }
      if (type instanceof FloatType || type instanceof DoubleType) return true;
    }
    return false;
  }

  /** Equal scans read the same rows: Spark reuses their exchanges. */
  @Override
  public boolean equals(Object other) {
    return other != null
        && getClass() == other.getClass()
        && table.id().equals(((TableScan) other).table.id())
        && request().equals(((TableScan) other).request());
  }

  @Override
  public int hashCode() {
    return Objects.hash(table.id(), Arrays.hashCode(required.fieldNames()));
  }
}

/** The scan of a query that only reads: Spark may filter it by what the other side of a join turned out to have. */
final class FilteredTableScan extends TableScan implements SupportsRuntimeV2Filtering {
  FilteredTableScan(
      ReadableTable table, Map<String, String> options, StructType required, Predicate[] predicates, int limit) {
    super(table, options, required, predicates, limit, null);
  }

  @Override
  public NamedReference[] filterAttributes() {
    List<NamedReference> found = new ArrayList<>();
    List<String> wanted = new ArrayList<>(Json.list(table.loaded.get("partition_columns")));
    if (table.bucketColumn() != null) wanted.add(table.bucketColumn());
    for (String column : wanted) {
      if (Arrays.asList(required.fieldNames()).contains(column)) found.add(FieldReference.column(column));
    }
    return found.toArray(new NamedReference[0]);
  }

  /** Values that the other side of a join has, known only when the query runs: plan again with them. */
  @Override
  public void filter(Predicate[] found) {
    predicates.addAll(Arrays.asList(found));
    plan = null;
  }
}

/** The rows of one bucket. Partitions of equal buckets of two tables can be joined without a shuffle. */
final class BucketPartition implements HasPartitionKey {
  private static final long serialVersionUID = 1L;
  final InputPartition inner;
  private final int bucket;

  BucketPartition(InputPartition inner, int bucket) {
    this.inner = inner;
    this.bucket = bucket;
  }

  @Override
  public InternalRow partitionKey() {
    return new GenericInternalRow(new Object[] {bucket});
  }

  static InputPartition unwrapped(InputPartition partition) {
    return partition instanceof BucketPartition ? ((BucketPartition) partition).inner : partition;
  }
}

final class MixedReaderFactory implements PartitionReaderFactory {
  private static final long serialVersionUID = 1L;
  private final PartitionReaderFactory hot;
  private final PartitionReaderFactory parquet;
  private final int columns;

  MixedReaderFactory(PartitionReaderFactory hot, PartitionReaderFactory parquet, int columns) {
    this.hot = hot;
    this.parquet = parquet;
    this.columns = columns;
  }

  private static boolean isHot(InputPartition partition) {
    return partition instanceof PythonInputPartition;
  }

  /** Of a bucket without rows. */
  private static boolean isEmpty(InputPartition partition) {
    return partition instanceof FilePartition && ((FilePartition) partition).files().length == 0;
  }

  /** One answer for all partitions of a scan, as Spark demands: columns unless Spark's Parquet reader gives rows. */
  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return parquet == null || parquet.supportColumnarReads(BucketPartition.unwrapped(partition));
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrapped(partition);
    if (isEmpty(inner)) return new NoRows<>();
    return isHot(inner) ? new HotRows(batches(inner)) : parquet.createReader(inner);
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    InputPartition inner = BucketPartition.unwrapped(partition);
    if (isEmpty(inner)) return new NoRows<>();
    return isHot(inner) ? batches(inner) : parquet.createColumnarReader(inner);
  }

  private HotBatches batches(InputPartition partition) {
    PartitionReader<InternalRow> rows = Errors.plainly(() -> hot.createReader(partition));
    return new HotBatches(rows, columns);
  }
}

final class NoRows<T> implements PartitionReader<T> {
  @Override
  public boolean next() {
    return false;
  }

  @Override
  public T get() {
    throw new IllegalStateException("there are no rows");
  }

  @Override
  public void close() {}
}

/** Arrow batches from Python: each row that arrives is one Arrow IPC stream of one batch. */
final class HotBatches implements PartitionReader<ColumnarBatch> {
  private final PartitionReader<InternalRow> rows;
  private final int columns;
  private final BufferAllocator allocator =
      ArrowUtils.rootAllocator().newChildAllocator("streamhouse", 0, Long.MAX_VALUE);
  private ArrowStreamReader reader;
  private ColumnarBatch batch;

  HotBatches(PartitionReader<InternalRow> rows, int columns) {
    this.rows = rows;
    this.columns = columns;
  }

  @Override
  public boolean next() throws IOException {
    closeReader();
    if (!Errors.<Boolean>plainly(rows::next)) return false;
    reader = new ArrowStreamReader(new ByteArrayInputStream(rows.get().getBinary(0)), allocator);
    if (!reader.loadNextBatch()) throw new IOException("an Arrow stream without a batch came from Python");
    VectorSchemaRoot root = reader.getVectorSchemaRoot();
    ColumnVector[] vectors = new ColumnVector[columns];
    for (int i = 0; i < columns; i++) vectors[i] = new HotColumn(root.getVector(i));
    batch = new ColumnarBatch(vectors, root.getRowCount());
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  private void closeReader() throws IOException {
    if (reader != null) reader.close();
    reader = null;
  }

  @Override
  public void close() throws IOException {
    try {
      closeReader();
    } finally {
      rows.close();
      allocator.close();
    }
  }
}

/**
 * A column of a batch, valid until the next batch is asked for, as columns of Spark's Parquet reader are. It is no {@link
 * ArrowColumnVector}, because Spark 4.3 keeps those for longer where a Python function follows the scan.
 */
final class HotColumn extends ColumnVector {
  private final ArrowColumnVector inner;

  HotColumn(ValueVector vector) {
    this(new ArrowColumnVector(vector));
  }

  private HotColumn(ArrowColumnVector inner) {
    super(inner.dataType());
    this.inner = inner;
  }

  @Override
  public void close() {
    inner.close();
  }

  @Override
  public boolean hasNull() {
    return inner.hasNull();
  }

  @Override
  public int numNulls() {
    return inner.numNulls();
  }

  @Override
  public boolean isNullAt(int row) {
    return inner.isNullAt(row);
  }

  @Override
  public boolean getBoolean(int row) {
    return inner.getBoolean(row);
  }

  @Override
  public byte getByte(int row) {
    return inner.getByte(row);
  }

  @Override
  public short getShort(int row) {
    return inner.getShort(row);
  }

  @Override
  public int getInt(int row) {
    return inner.getInt(row);
  }

  @Override
  public long getLong(int row) {
    return inner.getLong(row);
  }

  @Override
  public float getFloat(int row) {
    return inner.getFloat(row);
  }

  @Override
  public double getDouble(int row) {
    return inner.getDouble(row);
  }

  @Override
  public ColumnarArray getArray(int row) {
    return inner.getArray(row);
  }

  @Override
  public ColumnarMap getMap(int row) {
    return inner.getMap(row);
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    return inner.getDecimal(row, precision, scale);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    return inner.getUTF8String(row);
  }

  @Override
  public byte[] getBinary(int row) {
    return inner.getBinary(row);
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    return inner.getChild(ordinal);
  }
}

/** The same rows one by one, for plans that Spark does not run on columns. */
final class HotRows implements PartitionReader<InternalRow> {
  private final HotBatches batches;
  private Iterator<InternalRow> rows = Collections.emptyIterator();

  HotRows(HotBatches batches) {
    this.batches = batches;
  }

  @Override
  public boolean next() throws IOException {
    while (!rows.hasNext()) {
      if (!batches.next()) return false;
      rows = batches.get().rowIterator();
    }
    return true;
  }

  @Override
  public InternalRow get() {
    return rows.next();
  }

  @Override
  public void close() throws IOException {
    batches.close();
  }
}

// -- buckets ---------------------------------------------------------------------------------------------------------

/**
 * {@code bucket(n, key)} is Iceberg's bucket transform (table specification, appendix B): Murmur3 with seed 0, the sign
 * bit cleared, modulo n. {@code slot(n, p, key)} is a number whose Spark hash partition out of p is the bucket modulo p,
 * another one for each bucket: clustering by it gives each task whole buckets and spreads them evenly.
 */
final class BucketFunction implements UnboundFunction {
  private static final long serialVersionUID = 1L;
  private final boolean slot;

  BucketFunction(boolean slot) {
    this.slot = slot;
  }

  @Override
  public String name() {
    return slot ? "slot" : "bucket";
  }

  @Override
  public String description() {
    return slot ? "slot(buckets, tasks, key): spreads buckets over tasks" : "bucket(n, key): Iceberg's bucket of a key";
  }

  @Override
  public BoundFunction bind(StructType inputs) {
    int numbers = slot ? 2 : 1;
    if (inputs.length() != numbers + 1) throw new UnsupportedOperationException(description());
    DataType key = inputs.fields()[numbers].dataType();
    if (!Bucket.accepts(key)) throw new UnsupportedOperationException("no bucket of " + key.simpleString());
    return slot ? new Slot(key) : new Bucket(key);
  }
}

class Bucket implements ScalarFunction<Integer>, Serializable {
  private static final long serialVersionUID = 1L;
  final DataType key;

  Bucket(DataType key) {
    this.key = key;
  }

  static boolean accepts(DataType type) {
    return type instanceof IntegerType
        || type instanceof LongType
        || type instanceof ShortType
        || type instanceof ByteType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType
        || type instanceof DecimalType
        || type instanceof StringType
        || type instanceof BinaryType;
  }

  @Override
  public String name() {
    return "bucket";
  }

  @Override
  public String canonicalName() {
    return "streamhouse.bucket(" + key.catalogString() + ")";
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.IntegerType, key};
  }

  @Override
  public DataType resultType() {
    return DataTypes.IntegerType;
  }

  @Override
  public boolean isResultNullable() {
    return false;
  }

  @Override
  public Integer produceResult(InternalRow input) {
    return of(input, 1, input.getInt(0));
  }

  /** Null is in bucket 0. */
  final int of(InternalRow input, int position, int buckets) {
    return input.isNullAt(position) ? 0 : (hash(input, position) & Integer.MAX_VALUE) % buckets;
  }

  private int hash(InternalRow input, int position) {
    if (key instanceof StringType) {
      UTF8String text = input.getUTF8String(position);
      return Murmur3_x86_32.hashUnsafeBytes2(text.getBaseObject(), text.getBaseOffset(), text.numBytes(), 0);
    }
    if (key instanceof BinaryType) return bytes(input.getBinary(position));
    if (key instanceof DecimalType) {
      DecimalType type = (DecimalType) key;
      Decimal value = input.getDecimal(position, type.precision(), type.scale());
      return bytes(value.toJavaBigDecimal().unscaledValue().toByteArray());
    }
    if (key instanceof LongType || key instanceof TimestampType || key instanceof TimestampNTZType) {
      return Murmur3_x86_32.hashLong(input.getLong(position), 0);
    }
    if (key instanceof ShortType) return Murmur3_x86_32.hashLong(input.getShort(position), 0);
    if (key instanceof ByteType) return Murmur3_x86_32.hashLong(input.getByte(position), 0);
    return Murmur3_x86_32.hashLong(input.getInt(position), 0);
  }

  private static int bytes(byte[] value) {
    return Murmur3_x86_32.hashUnsafeBytes2(value, Platform.BYTE_ARRAY_OFFSET, value.length, 0);
  }
}

final class Slot extends Bucket {
  private static final long serialVersionUID = 1L;
  private static final int SPARK_SEED = 42;
  private transient int[] slots;

  Slot(DataType key) {
    super(key);
  }

  @Override
  public String name() {
    return "slot";
  }

  @Override
  public String canonicalName() {
    return "streamhouse.slot(" + key.catalogString() + ")";
  }

  @Override
  public DataType[] inputTypes() {
    return new DataType[] {DataTypes.IntegerType, DataTypes.IntegerType, key};
  }

  @Override
  public Integer produceResult(InternalRow input) {
    int buckets = input.getInt(0);
    if (slots == null) slots = slots(buckets, input.getInt(1));
    return slots[of(input, 2, buckets)];
  }

  private static int[] slots(int buckets, int tasks) {
    int[] found = new int[buckets];
    BitSet used = new BitSet();
    for (int bucket = 0; bucket < buckets; bucket++) {
      int slot = 0;
      while (used.get(slot) || Math.floorMod(Murmur3_x86_32.hashInt(slot, SPARK_SEED), tasks) != bucket % tasks) slot++;
      used.set(slot);
      found[bucket] = slot;
    }
    return found;
  }
}
