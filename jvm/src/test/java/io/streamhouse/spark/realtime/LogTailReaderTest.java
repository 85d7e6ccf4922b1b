package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.storage.LocalLogStore;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Logs that Python wrote, read from positions that Python planned, return the rows that Python reads. */
class LogTailReaderTest {
  private static final Path GOLDEN = Path.of(System.getProperty("streamhouse.golden"));

  /** Long enough for a busy machine. All readers here end earlier. */
  private static final long WAIT_MS = 20_000;

  private static JsonNode cases() throws IOException {
    return Json.parse(Files.readString(GOLDEN.resolve("follow").resolve("cases.json")));
  }

  /** Returns a reader of the log on the local disk. */
  static LogTailReader reader(JsonNode task, StructType schema, Path folder) {
    LogStore files = new LocalLogStore(folder);
    return new LogTailReader(task, schema, files, new LocalLogTail(files, task.get("uuid").asText()));
  }

  private static LogTailReader reader(JsonNode testCase, Path warehouse) {
    StructType schema = (StructType) DataType.fromJson(testCase.get("schema").asText());
    return reader(testCase.get("task"), schema, warehouse.resolve(testCase.get("task").get("folder").asText()));
  }

  /** Returns a reader of the log through a Hadoop file system, as for an object store. */
  private static LogTailReader remoteReader(JsonNode testCase, Path warehouse) throws IOException {
    String folder = warehouse.resolve(testCase.get("task").get("folder").asText()).toUri().toString();
    ObjectNode task = testCase.get("task").deepCopy();
    task.put("folder", folder);
    StructType schema = (StructType) DataType.fromJson(testCase.get("schema").asText());
    LogTailReaderFactory factory = new LogTailReaderFactory(schema, UUID.randomUUID().toString(), new Configuration());
    return (LogTailReader) factory.createReader(new TailedBuckets(task.toString()));
  }

  private static List<String> rows(LogTailReader reader, JsonNode testCase) throws IOException {
    StructType schema = (StructType) DataType.fromJson(testCase.get("schema").asText());
    List<String> actual = new ArrayList<>();
    while (reader.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord()) {
      InternalRow row = reader.get();
      List<String> values = new ArrayList<>();
      for (int i = 0; i < schema.length(); i++) values.add(text(row, i, schema.fields()[i]));
      actual.add(values.toString());
    }
    actual.sort(null);
    return actual;
  }

  private static String text(InternalRow row, int at, StructField field) {
    if (row.isNullAt(at)) return "null";
    if (field.dataType() instanceof ArrayType) return Arrays.toString(row.getArray(at).toIntArray());
    return String.valueOf(row.get(at, field.dataType()));
  }

  private static List<String> expected(JsonNode testCase) {
    return expected(testCase, null);
  }

  /** Returns the rows as Python reads them, or some of their columns. */
  private static List<String> expected(JsonNode testCase, List<Integer> chosen) {
    List<String> expected = new ArrayList<>();
    for (JsonNode row : testCase.get("rows")) {
      List<String> values = Json.toList(row);
      expected.add((chosen == null ? values : chosen.stream().map(values::get).toList()).toString());
    }
    expected.sort(null);
    return expected;
  }

  @Test
  void eachRowIsReadOnceUpToARecordThatPythonHandles() throws IOException {
    for (JsonNode testCase : cases()) {
      // otherwise the log ends: do not wait
      boolean ends = testCase.get("last").asLong() >= testCase.get("task").get("next").asLong();
      ((ObjectNode) testCase.get("task")).put("follows", ends);
      Path warehouse = GOLDEN.resolve(testCase.get("warehouse").asText());
      for (LogTailReader reader : List.of(reader(testCase, warehouse), remoteReader(testCase, warehouse))) {
        assertEquals(expected(testCase), rows(reader, testCase), testCase.get("name").asText());
        TailOffsets reached = reader.getOffset();
        assertTrue(reached.record <= testCase.get("last").asLong());
        assertFalse(reader.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord());
        reader.close(); // Arrow reports leaked buffers here
      }
    }
  }

  /** A query that needs some columns reads the same values. */
  @Test
  void selectedColumnsHaveTheSameValues() throws IOException {
    JsonNode testCase = cases().get(0);
    StructType whole = (StructType) DataType.fromJson(testCase.get("schema").asText());
    List<String> all = expected(testCase);
    Path warehouse = GOLDEN.resolve(testCase.get("warehouse").asText());
    for (List<Integer> chosen : List.of(List.of(0), List.of(4, 1), List.of(2, 6), List.<Integer>of())) {
      StructType schema = new StructType();
      ObjectNode narrowCase = testCase.deepCopy();
      for (int column : chosen) schema = schema.add(whole.fields()[column]);
      for (JsonNode layout : narrowCase.get("task").get("layouts")) {
        ArrayNode columns = (ArrayNode) layout.get("columns");
        ArrayNode narrowColumns = Json.array();
        for (int column : chosen) narrowColumns.add(columns.get(column));
        ((ObjectNode) layout).set("columns", narrowColumns);
      }
      narrowCase.put("schema", schema.json());
      List<String> expectedRows = expected(testCase, chosen);
      assertEquals(all.size(), expectedRows.size());
      assertEquals(expectedRows, rows(reader(narrowCase, warehouse), narrowCase));
      assertEquals(expectedRows, rows(remoteReader(narrowCase, warehouse), narrowCase));
    }
  }

  @Test
  void aReaderContinuesInTheMiddleOfARecord() throws IOException {
    JsonNode testCase = cases().get(0);
    LogTailReader whole = reader(testCase, GOLDEN.resolve(testCase.get("warehouse").asText()));
    ObjectNode later = testCase.deepCopy();
    List<String> firsts = new ArrayList<>();
    for (int i = 0; i < 7; i++) {
      assertTrue(whole.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord());
      firsts.add("" + whole.get().getLong(0));
    }
    TailOffsets reached = (TailOffsets) whole.getOffset();
    for (JsonNode bucket : later.get("task").get("buckets")) {
      ((ObjectNode) bucket).put("offset", reached.offsets.get(bucket.get("bucket").asInt()));
    }
    List<String> rest = rows(reader(later, GOLDEN.resolve(testCase.get("warehouse").asText())), testCase);
    assertEquals(expected(testCase).size() - 7, rest.size());
    assertTrue(rest.stream().noneMatch(row -> firsts.stream().anyMatch(id -> row.startsWith("[" + id + ","))));
    whole.close();
  }

  /** Copies the warehouse of a test case and returns the folder of its log. */
  private static Path copied(JsonNode testCase, Path folder) throws IOException {
    Path from = GOLDEN.resolve(testCase.get("warehouse").asText());
    try (Stream<Path> paths = Files.walk(from)) {
      for (Path path : (Iterable<Path>) paths::iterator) {
        Path target = folder.resolve(from.relativize(path).toString());
        if (Files.isRegularFile(path)) Files.copy(path, target);
        else Files.createDirectories(target);
      }
    }
    return folder.resolve(testCase.get("task").get("folder").asText());
  }

  private static void flip(Path path, int position) throws IOException {
    byte[] bytes = Files.readAllBytes(path);
    bytes[position] ^= 1;
    Files.write(path, bytes);
  }

  @Test
  void aRecordThatIsDamagedOrNewerEndsTheBatch(@TempDir Path folder) throws IOException {
    JsonNode testCase = cases().get(0);
    Path table = copied(testCase, folder);
    Path record = table.resolve(CommitRecord.fileName(16));
    byte[] whole = Files.readAllBytes(record);
    int all = rows(reader(testCase, folder), testCase).size();
    String text = new String(whole, StandardCharsets.ISO_8859_1);
    for (int position : new int[] {0, 30, 60, 100, 400, whole.length - 1}) {
      flip(record, position);
      assertTrue(rows(reader(testCase, folder), testCase).size() < all, "byte " + position);
      Files.write(record, whole);
    }
    Files.write(record, text.replace("\"version\":1", "\"version\":3").getBytes(StandardCharsets.ISO_8859_1));
    assertTrue(rows(reader(testCase, folder), testCase).size() < all);
    Files.write(record, Files.readAllBytes(table.resolve(CommitRecord.fileName(15))));
    assertTrue(rows(reader(testCase, folder), testCase).size() < all, "a copy of another record");
    Files.write(record, whole);
    ObjectNode other = testCase.deepCopy();
    ((ObjectNode) other.get("task")).put("attempt", "0".repeat(32));
    assertTrue(rows(reader(other, folder), testCase).size() < all, "another history");
    ((ObjectNode) other.get("task")).put("follows", false);
    assertTrue(rows(reader(other, folder), testCase).size() < all);
  }

  @Test
  void theErrorForADamagedSegmentNamesIt(@TempDir Path folder) throws IOException {
    JsonNode testCase = cases().get(0);
    Path table = copied(testCase, folder);
    List<Path> segments;
    try (Stream<Path> paths = Files.list(table.resolve("segments"))) {
      segments = paths.toList();
    }
    int errors = 0;
    for (Path segment : segments) {
      byte[] whole = Files.readAllBytes(segment);
      flip(segment, whole.length - 100);
      for (boolean isStore : new boolean[] {false, true}) {
        try {
          rows(isStore ? remoteReader(testCase, folder) : reader(testCase, folder), testCase);
        } catch (Exception error) {
          assertTrue(error instanceof AnalysisException, error.toString());
          String place = isStore ? "file:" + segment : segment.toString();
          assertTrue(error.getMessage().contains("CORRUPT_DATA: " + place), error.getMessage());
          errors++;
        }
      }
      Files.write(segment, whole);
    }
    assertTrue(errors >= 16, errors + " of " + segments.size());
    for (Path segment : segments) Files.delete(segment);
    for (LogTailReader reader : List.of(reader(testCase, folder), remoteReader(testCase, folder))) {
      Exception error = assertThrows(AnalysisException.class, () -> rows(reader, testCase));
      assertTrue(error.getMessage().contains(".arrow is missing; restore this file"), error.getMessage());
    }
  }

  @Test
  void recordsOfOtherTablesAndManifestsThatDoNotMatchAreNotRead(@TempDir Path folder) throws IOException {
    JsonNode testCase = cases().get(0);
    Path table = copied(testCase, folder);
    String uuid = testCase.get("task").get("uuid").asText();
    LogStore files = new LocalLogStore(table);
    byte[] record = files.read(CommitRecord.fileName(19));
    assertEquals(19, CommitRecord.decode(record, files, uuid, 19).number);
    assertNull(CommitRecord.decode(record, files, "0".repeat(32), 19));
    assertNull(CommitRecord.decode(record, files, uuid, 20));
    assertNull(CommitRecord.decode(null, files, uuid, 20));
    try (Stream<Path> paths = Files.list(table.resolve("manifests"))) {
      for (Path manifest : paths.toList()) flip(manifest, 500);
    }
    assertNull(CommitRecord.decode(record, files, uuid, 19));
  }
}
