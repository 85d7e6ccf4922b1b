package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.procedure.PythonProcedure;
import io.streamhouse.spark.realtime.RealTimeStreamTest;
import io.streamhouse.spark.rpc.Protocol;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.rpc.RecordingRpc;
import io.streamhouse.spark.scan.ReadableTable;
import io.streamhouse.spark.scan.TableScanBuilder;
import io.streamhouse.spark.stream.ChangelogStream;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.write.PartitionedTable;
import io.streamhouse.spark.write.SchemaEvolvingTables;
import io.streamhouse.spark.write.WritableTable;
import java.io.IOException;
import java.io.InputStream;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.ViewAlreadyExistsException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.ChangelogRange;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.View;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.pipelines.graph.DatasetManagerOfTests;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;
import org.junit.jupiter.api.Test;

/** The catalog without a Spark session and without Python: what it requests and how it handles the answers. */
class StreamhouseCatalogTest {
  private static final String[] SALES = {"sales"};
  private static final Identifier ORDERS = Identifier.of(SALES, "orders");
  private static final StructType SCHEMA = new StructType().add("id", "bigint").add("dt", "string");

  private final RecordingRpc calls =
      new RecordingRpc()
          .answer("databases", "{\"databases\":[\"default\",\"sales\"]}")
          .answer("database", "{\"exists\":true,\"properties\":{\"comment\":\"c\"}}")
          .answer("drop_database", "{\"dropped\":true}")
          .answer("tables", "{\"tables\":[\"orders\"]}")
          .answer("load", loaded("table", "p1"))
          .answer("load_changes", loaded("changes", "p1").replaceFirst("\\{", "{\"row_id\":[\"id\"],\"first\":2,"))
          .answer("end_of_changes", "{\"newest\":7,\"offset\":null}")
          .answer("load_source", loaded("lake", "p1").replace("sales.orders", "sales.orders$lake"))
          .answer("replace_table", loaded("table", "p1").replaceFirst("\\{", "{\"replaces\":\"o\","))
          .answer("drop_table", "{\"dropped\":true}")
          .answer("views", "{\"views\":[\"ones\"]}")
          .answer("load_view", "{\"view\":" + VIEW + "}")
          .answer("drop_view", "{\"dropped\":true}")
          .answer("can_delete", "{\"can\":true}")
          .answer("can_alter", "{\"can\":true}")
          .answer("delete_where", "{\"rows\":2}")
          .answer("partition_values", "{\"partitions\":[[\"a\"],[null]]}")
          .answer("aggregate", "{\"row\":[3,7],\"validators\":null}")
          .answer("row_level_operation",
              "{\"snapshot\":\"p2\",\"row_id\":[\"id\"],\"schema\":\"" + escaped(SCHEMA.json())
              + "\",\"read\":\"r\",\"schema_id\":0}")
          .answer("procedures",
              "{\"procedures\":[{\"name\":\"expire\",\"description\":\"d\",\"result\":\"r\","
              + "\"parameters\":[{\"name\":\"table\",\"type\":\"\\\"string\\\"\",\"default\":null,"
                  + "\"comment\":\"c\"}]}]}")
          .answer("call_procedure", "{\"schema\":\"" + escaped(SCHEMA.json()) + "\",\"rows\":[[1,\"a\"]]}");

  private static final String VIEW =
      "{\"text\":\"select 1\",\"schema\":\"" + escaped(SCHEMA.json()) + "\",\"catalog\":\"lakehouse\","
          + "\"namespace\":[\"sales\"],\"query_columns\":[],\"schema_mode\":\"COMPENSATION\",\"configs\":{\"a\":\"b\"},"
          + "\"properties\":{\"comment\":\"c\",\"table_type\":\"VIEW\"}}";

  private final StreamhouseViewCatalog catalog =
      new StreamhouseViewCatalog() {
        @Override
        public PythonRpc python() {
          return calls;
        }
      };

  StreamhouseCatalogTest() {
    catalog.initialize("lakehouse", new CaseInsensitiveStringMap(Map.of("warehouse", "/w")));
  }

  private static String escaped(String json) {
    return json.replace("\\", "\\\\").replace("\"", "\\\"");
  }

  private static String loaded(String kind, String snapshot) {
    return "{\"kind\":\"" + kind + "\",\"name\":\"sales.orders\",\"uuid\":\"u\",\"version\":\"1\",\"schema\":\""
        + escaped(SCHEMA.json()) + "\",\"partitioning\":[{\"transform\":\"identity\",\"columns\":[[\"dt\"]],"
        + "\"arguments\":[]},{\"transform\":\"bucket\",\"columns\":[[\"id\"]],\"arguments\":[4]}],"
        + "\"properties\":{\"a\":\"b\"},\"takes_updates\":false,\"streams_rows\":true,"
        + "\"buckets\":{\"count\":4,\"key\":[\"id\"]},\"partition_columns\":[\"dt\"],\"metadata_columns\":"
        + "[{\"name\":\"_offset\",\"type\":\"\\\"long\\\"\",\"nullable\":true}],\"rows\":3,\"bytes\":9,"
        + "\"snapshot\":\"" + snapshot + "\",\"validators\":null}";
  }

  private static TableInfo info() {
    return new TableInfo.Builder()
        .withColumns(new Column[] {Column.create("id", DataTypes.LongType), Column.create("dt", DataTypes.StringType)})
        .withPartitions(new Transform[] {Expressions.identity("dt"), Expressions.bucket(4, "id")})
        .withProperties(Map.of("owner", "me"))
        .build();
  }

  /**
   * Covers all operations except plans, whose arguments depend on the cores of Spark, and those with tests of their
   * own.
   */
  @Test
  void eachOperationReceivesItsArguments() throws Exception {
    calls.warmUp().join();
    assertArrayEquals(new String[][] {{"default"}, {"sales"}}, catalog.listNamespaces());
    assertEquals(Map.of("comment", "c"), catalog.loadNamespaceMetadata(SALES));
    catalog.createNamespace(SALES, Map.of("comment", "c"));
    catalog.alterNamespace(SALES, NamespaceChange.setProperty("a", "b"), NamespaceChange.removeProperty("a"));
    assertArrayEquals(new Identifier[] {ORDERS}, catalog.listTables(SALES));
    catalog.createTable(ORDERS, info());
    catalog.createTableLike(ORDERS, info(), catalog.loadTable(ORDERS));
    catalog.stageReplace(ORDERS, info()).commitStagedChanges();
    catalog.stageReplace(ORDERS, info()).abortStagedChanges();
    catalog.loadTable(ORDERS, "7");
    catalog.loadTable(ORDERS, 8L);
    catalog.alterTable(ORDERS, TableChange.setProperty("a", "b"));
    catalog.mergeColumns(ORDERS, new StructType().add("id", "int"));
    catalog.renameTable(ORDERS, Identifier.of(new String[] {"lakehouse", "sales"}, "other"));
    assertEquals("orders$lake",
        ReadableTable.loadSource(catalog, Map.of("path", "sales.orders$lake")).identifier.name());
    Changelog changes = changes(new ChangelogRange.VersionRange("2", Optional.of("3"), true, false));
    assertEquals("id", changes.rowId()[0].describe());
    assertTrue(changes.containsIntermediateChanges());
    streamOfChanges();
    PartitionedTable table = (PartitionedTable) catalog.loadTable(ORDERS);
    table.truncateTable();
    Predicate[] some = {new Predicate("IS_NULL", new Expression[] {FieldReference.column("id")})};
    assertTrue(table.canDeleteWhere(some));
    table.deleteWhere(some);
    InternalRow value = new GenericInternalRow(new Object[] {UTF8String.fromString("a")});
    assertEquals(2, table.listPartitionIdentifiers(new String[] {"dt"}, value).length);
    table.dropPartitions(new InternalRow[] {value});
    assertTrue(table.truncatePartition(value));
    table.checkOptions("write", Map.of("a", "b"));
    TableChange widened = TableChange.updateColumnType(new String[] {"id"}, DataTypes.LongType);
    assertTrue(((SupportsSchemaEvolution) table).supportsColumnChange((TableChange.ColumnChange) widened));
    operation(table, RowLevelOperation.Command.UPDATE);
    pushAggregates(table);
    PythonProcedure procedure =
        (PythonProcedure) catalog.loadProcedure(Identifier.of(new String[] {"system"}, "EXPIRE"));
    Scan rows = procedure.call(value).next();
    assertEquals(1L, ((LocalScan) rows).rows()[0].getLong(0));
    views();
    assertTrue(catalog.purgeTable(ORDERS));
    assertTrue(catalog.dropNamespace(SALES, true));

    Map<String, Object> listed = new TreeMap<>();
    Protocol.NAMES.get("operations").fieldNames().forEachRemaining(name -> listed.put(name, Protocol.arguments(name)));
    listed.remove("plan");
    listed.remove("plan_batch_of_changes");
    listed.keySet().removeAll(RealTimeStreamTest.OPERATIONS);
    listed.remove("end_real_time_write");
    listed.remove("begin_real_time_write"); // requested by a running query
    assertEquals(listed, calls.argumentNames);
  }

  private void views() throws Exception {
    calls.refuse("load", "NAME_IS_VIEW");
    View view = (View) catalog.loadRelation(ORDERS);
    assertThrows(NoSuchTableException.class, () -> catalog.loadTable(ORDERS));
    catalog.createOrReplaceView(ORDERS, view);
    assertTrue(calls.last.get("replace").asBoolean());
    assertEquals(Json.parse(VIEW), calls.last.get("view"));
    catalog.createView(ORDERS, view);
    assertFalse(calls.last.get("replace").asBoolean());
    catalog.replaceView(ORDERS, view);
    catalog.renameView(ORDERS, Identifier.of(new String[] {"lakehouse", "sales"}, "other"));
    assertEquals("sales", calls.last.get("to_database").asText());
    assertArrayEquals(new Identifier[] {Identifier.of(SALES, "ones")}, catalog.listViews(SALES));
    assertTrue(catalog.dropView(ORDERS));
    calls.answer("load", loaded("table", "p1"));
    assertInstanceOf(Table.class, catalog.loadRelation(ORDERS));
  }

  /** Only names that exist or are missing become Spark's own exceptions. */
  @Test
  void errorsOfViewsAreSparksExceptions() throws Exception {
    calls.refuse("load", "NAME_IS_VIEW");
    View view = (View) catalog.loadRelation(ORDERS);
    for (String taken : new String[] {"VIEW_EXISTS", "TABLE_EXISTS"}) {
      calls.refuse("create_view", taken).refuse("rename_view", taken);
      assertThrows(ViewAlreadyExistsException.class, () -> catalog.createView(ORDERS, view));
      assertThrows(ViewAlreadyExistsException.class, () -> catalog.renameView(ORDERS, ORDERS));
    }
    calls.refuse("create_view", "DATABASE_NOT_FOUND").refuse("views", "DATABASE_NOT_FOUND");
    assertThrows(NoSuchNamespaceException.class, () -> catalog.createOrReplaceView(ORDERS, view));
    assertThrows(NoSuchNamespaceException.class, () -> catalog.listViews(SALES));
    calls.refuse("replace_view", "VIEW_NOT_FOUND").refuse("rename_view", "VIEW_NOT_FOUND");
    assertThrows(NoSuchViewException.class, () -> catalog.replaceView(ORDERS, view));
    assertThrows(NoSuchViewException.class, () -> catalog.renameView(ORDERS, ORDERS));
    calls.refuse("load_view", "VIEW_NOT_FOUND");
    assertThrows(NoSuchTableException.class, () -> catalog.loadRelation(ORDERS));
    assertThrows(AnalysisException.class, () -> new StreamhouseCatalog() {
      @Override
      public PythonRpc python() {
        return calls;
      }
    }.loadTable(ORDERS), "the catalog without views says that it is one");
  }

  private Changelog changes(ChangelogRange range) throws Exception {
    ChangelogContext.DeduplicationMode mode = ChangelogContext.DeduplicationMode.NET_CHANGES;
    return catalog.loadChangelog(ORDERS, new ChangelogContext(range, mode, true), CaseInsensitiveStringMap.empty());
  }

  private void streamOfChanges() throws Exception {
    JsonNode metadata = calls.call("load_changes", Json.object());
    ObjectNode scan = Json.object();
    scan.putArray("columns");
    ChangelogStream stream = new ChangelogStream(new ReadableTable(catalog, ORDERS, metadata), scan);
    stream.prepareForTriggerAvailableNow();
    assertTrue(calls.last.get("start").isNull());
    Offset start = stream.initialOffset();
    assertEquals("{\"uuid\":\"u\",\"commit\":1,\"attempt\":null,\"time_us\":null}", start.json());
    assertEquals(start, stream.latestOffset(stream.deserializeOffset(start.json()), stream.getDefaultReadLimit()));
    assertEquals(7, calls.last.get("until").asLong());
    calls.answer("end_of_changes", "{\"newest\":7,\"offset\":{\"commit\":7}}");
    assertEquals("{\"commit\":7}", stream.latestOffset(start, stream.getDefaultReadLimit()).json());
  }

  /** Spark 4.1 looks up the constructors, for which the JVM verifies the code of all methods. */
  @Test
  void theCatalogLoadsWithoutSparksChangelogTypes() throws Exception {
    ClassLoader older =
        new ClassLoader(getClass().getClassLoader()) {
          @Override
          protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (name.startsWith(Changelog.class.getName()) || name.endsWith(".RelationCatalog")) {
              throw new ClassNotFoundException(name);
            }
            if (!name.startsWith("io.streamhouse.")) return super.loadClass(name, resolve);
            Class<?> defined = findLoadedClass(name);
            if (defined != null) return defined;
            try (InputStream file = getParent().getResourceAsStream(name.replace('.', '/') + ".class")) {
              byte[] bytes = file.readAllBytes();
              return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
              throw new ClassNotFoundException(name, error);
            }
          }
        };
    Class<?> catalogClass = older.loadClass(StreamhouseCatalog.class.getName());
    assertNotEquals(StreamhouseCatalog.class, catalogClass);
    assertInstanceOf(TableCatalog.class, catalogClass.getDeclaredConstructor().newInstance());
  }

  @Test
  void aRangeOfChangesIsEncoded() throws Exception {
    changes(new ChangelogRange.VersionRange("2", Optional.of("3"), true, false));
    String versions = "{\"by\":\"version\",\"start\":\"2\",\"end\":\"3\",";
    assertEquals(versions + "\"includes_start\":true,\"includes_end\":false}", calls.last.get("range").toString());
    assertEquals("netChanges", calls.last.get("mode").asText());
    changes(new ChangelogRange.TimestampRange(5L, Optional.empty(), false, true));
    String times = "{\"by\":\"timestamp\",\"start\":5,\"end\":null,\"includes_start\":false,\"includes_end\":true}";
    assertEquals(times, calls.last.get("range").toString());
    changes(new ChangelogRange.UnboundedRange());
    assertEquals("{\"by\":\"none\"}", calls.last.get("range").toString());
    calls.refuse("load_changes", "TABLE_NOT_FOUND");
    assertThrows(NoSuchTableException.class, () -> changes(new ChangelogRange.UnboundedRange()));
  }

  @Test
  void aDeleteThatIsAlwaysTrueTruncates() throws Exception {
    WritableTable table = (WritableTable) catalog.loadTable(ORDERS);
    Predicate[] all = {new AlwaysTrue()};
    assertTrue(table.canDeleteWhere(all));
    table.deleteWhere(all);
    assertTrue(calls.argumentNames.containsKey("truncate_table"));
    assertFalse(calls.argumentNames.containsKey("can_delete") || calls.argumentNames.containsKey("delete_where"));
  }

  private static RowLevelOperation operation(WritableTable table, RowLevelOperation.Command command) {
    return table
        .newRowLevelOperationBuilder(
            new RowLevelOperationInfo() {
              @Override
              public CaseInsensitiveStringMap options() {
                return CaseInsensitiveStringMap.empty();
              }

              @Override
              public RowLevelOperation.Command command() {
                return command;
              }
            })
        .build();
  }

  private static LocalScan pushAggregates(ReadableTable table) {
    TableScanBuilder builder = (TableScanBuilder) table.newScanBuilder(CaseInsensitiveStringMap.empty());
    AggregateFunc[] functions = {new CountStar(), new Max(FieldReference.column("id"))};
    assertTrue(builder.pushAggregation(new Aggregation(functions, new Expression[0])));
    return (LocalScan) builder.build();
  }

  @Test
  void anAggregateIsAnsweredWithoutAScan() throws Exception {
    LocalScan scan = pushAggregates((ReadableTable) catalog.loadTable(ORDERS));
    assertEquals(new StructType().add("c0", "bigint").add("c1", "bigint"), scan.readSchema());
    assertEquals(3L, scan.rows()[0].getLong(0));
    assertEquals(7L, scan.rows()[0].getLong(1));
  }

  @Test
  void aggregatesThatMetadataCannotAnswerAreNotRequested() throws Exception {
    ReadableTable table = (ReadableTable) catalog.loadTable(ORDERS);
    TableScanBuilder builder = (TableScanBuilder) table.newScanBuilder(CaseInsensitiveStringMap.empty());
    Expression[] groups = {FieldReference.column("dt")};
    assertFalse(builder.pushAggregation(new Aggregation(new AggregateFunc[] {new CountStar()}, groups)));
    AggregateFunc[] unknown = {new Max(FieldReference.column("gone"))};
    assertFalse(builder.supportCompletePushDown(new Aggregation(unknown, new Expression[0])));
    assertFalse(calls.argumentNames.containsKey("aggregate"));
  }

  @Test
  void conditionsAreSparksExceptions() {
    calls.refuse("create_database", "DATABASE_EXISTS");
    assertThrows(NamespaceAlreadyExistsException.class, () -> catalog.createNamespace(SALES, Map.of()));
    calls.refuse("drop_database", "DATABASE_NOT_EMPTY");
    assertThrows(NonEmptyNamespaceException.class, () -> catalog.dropNamespace(SALES, false));
    calls.refuse("drop_database", "DATABASE_NOT_FOUND");
    assertThrows(NoSuchNamespaceException.class, () -> catalog.dropNamespace(SALES, false));
    calls.refuse("tables", "DATABASE_NOT_FOUND");
    assertThrows(NoSuchNamespaceException.class, () -> catalog.listTables(SALES));
    calls.refuse("create_table", "TABLE_EXISTS");
    assertThrows(TableAlreadyExistsException.class, () -> catalog.createTable(ORDERS, info()));
    calls.refuse("create_table", "DATABASE_NOT_FOUND");
    assertThrows(NoSuchNamespaceException.class, () -> catalog.createTable(ORDERS, info()));
    calls.refuse("load", "TABLE_NOT_FOUND");
    assertThrows(NoSuchTableException.class, () -> catalog.loadTable(ORDERS));
    calls.refuse("load", "INVALID_OPTION");
    AnalysisException other = assertThrows(AnalysisException.class, () -> catalog.loadTable(ORDERS));
    assertEquals("INVALID_OPTION", other.getCondition());
  }

  @Test
  void databasesAreNotNested() {
    String[] deep = {"a", "b"};
    assertFalse(catalog.namespaceExists(deep));
    assertThrows(NoSuchTableException.class, () -> catalog.loadTable(Identifier.of(deep, "t")));
    assertThrows(AnalysisException.class, () -> catalog.createNamespace(deep, Map.of()));
    assertTrue(calls.argumentNames.isEmpty());
  }

  @Test
  void theKindOfANameDecidesItsTableClass() throws Exception {
    assertInstanceOf(PartitionedTable.class, catalog.loadTable(ORDERS));
    calls.answer("load", loaded("table", "p1").replace("\"partition_columns\":[\"dt\"]", "\"partition_columns\":[]"));
    assertEquals(SchemaEvolvingTables.Unpartitioned.class, catalog.loadTable(ORDERS).getClass());
    calls.answer("load", loaded("changelog", "p1"));
    Table changelog = catalog.loadTable(ORDERS);
    assertEquals(ReadableTable.class, changelog.getClass());
    assertTrue(changelog.capabilities().contains(TableCapability.MICRO_BATCH_READ));
    calls.answer("load", loaded("lake", "p1"));
    assertFalse(catalog.loadTable(ORDERS).capabilities().contains(TableCapability.MICRO_BATCH_READ));
  }

  /** Spark tests for the stream capability, and a table with a primary key names its changelog instead. */
  @Test
  void aPrimaryKeyTableNamesTheStreamThatItHas() throws Exception {
    calls.answer("load", loaded("table", "p1").replace("\"streams_rows\":true", "\"streams_rows\":false"));
    Table table = catalog.loadTable(ORDERS);
    assertTrue(table.capabilities().contains(TableCapability.BATCH_READ));
    AnalysisException error =
        assertThrows(
            AnalysisException.class, () -> table.capabilities().contains(TableCapability.MICRO_BATCH_READ));
    assertTrue(error.getMessage().contains("lakehouse.sales.`orders$changelog`"), error.getMessage());
    assertFalse(new TreeSet<>(table.capabilities()).contains(TableCapability.MICRO_BATCH_READ));
  }

  @Test
  void tablesOfOneVersionAreEqual() throws Exception {
    Table table = catalog.loadTable(ORDERS);
    assertEquals(table, catalog.loadTable(ORDERS));
    assertEquals(table.hashCode(), catalog.loadTable(ORDERS).hashCode());
    calls.answer("load", loaded("table", "p2"));
    assertNotEquals(table, catalog.loadTable(ORDERS));
    calls.answer("load", loaded("lake", "p1"));
    assertNotEquals(table, catalog.loadTable(ORDERS));
  }

  @Test
  void aLoadedTableHasTheAnsweredDescription() throws Exception {
    ReadableTable table = (ReadableTable) catalog.loadTable(ORDERS);
    assertEquals("lakehouse.sales.orders", table.name());
    assertEquals("1", table.version());
    assertEquals("u", table.id());
    assertEquals(SCHEMA, table.schema());
    assertEquals("id", table.bucketColumn());
    assertEquals(4, table.bucketCount());
    assertEquals("_offset", table.metadataColumns()[0].name());
    assertEquals("bucket(4, id)", table.partitioning()[1].toString());
    assertTrue(((WritableTable) table).canClusterByBucket(new StructType().add("ID", "bigint")));
    assertFalse(((WritableTable) table).canClusterByBucket(new StructType().add("other", "bigint")));
  }

  @Test
  void aPipelineSeesColumnPartitioningOnly() throws Exception {
    Table table = catalog.loadTable(ORDERS);
    Transform[] seen = DatasetManagerOfTests.call(table::partitioning);
    assertArrayEquals(new Transform[] {table.partitioning()[0]}, seen);
    assertEquals(2, table.partitioning().length);
  }

  @Test
  void changesOfAPipelineAreMarked() throws Exception {
    TableChange change = TableChange.updateColumnNullability(new String[] {"id"}, true);
    catalog.alterTable(ORDERS, change);
    assertFalse(lastAlterTable().get("of_pipeline").asBoolean());
    DatasetManagerOfTests.call(() -> catalog.alterTable(ORDERS, change));
    assertTrue(lastAlterTable().get("of_pipeline").asBoolean());
  }

  private JsonNode lastAlterTable() {
    return calls.lastByOperation.get("alter_table");
  }

  @Test
  void aTruncateIsNotDeferredWithoutAKnownRun() throws Exception {
    WritableTable table = (WritableTable) catalog.loadTable(ORDERS);
    boolean isDone = DatasetManagerOfTests.call(table::truncateTable);
    assertTrue(isDone);
    assertTrue(calls.lastByOperation.containsKey("truncate_table"));
  }

  @Test
  void functionsAreInTheSystemNamespace() throws Exception {
    assertEquals("bucket", catalog.loadFunction(Identifier.of(new String[] {"system"}, "BUCKET")).name());
    assertEquals("slot", catalog.loadFunction(Identifier.of(new String[0], "slot")).name());
    Identifier other = Identifier.of(SALES, "bucket");
    assertThrows(NoSuchFunctionException.class, () -> catalog.loadFunction(other));
  }

  @Test
  void theErrorForAnUnknownProcedureListsTheOthers() {
    AnalysisException error =
        assertThrows(
            AnalysisException.class,
            () -> catalog.loadProcedure(Identifier.of(new String[] {"system"}, "gone")));
    assertEquals("PROCEDURE_NOT_FOUND", error.getCondition());
    assertTrue(error.getMessage().endsWith("expected one of lakehouse.system.expire"), error.getMessage());
  }
}
