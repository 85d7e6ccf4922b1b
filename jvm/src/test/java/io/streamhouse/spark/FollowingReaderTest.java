package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** Logs that Python wrote, from positions that Python planned, give the rows that Python reads of them. */
class FollowingReaderTest {
  private static final Path GOLDEN = Path.of(System.getProperty("streamhouse.golden"));

  /** Long enough for a machine that does much else: all readers here come to an end before. */
  private static final long WAIT_MS = 20_000;

  private static JsonNode cases() throws IOException {
    return JsonTree.parse(Files.readString(GOLDEN.resolve("follow").resolve("cases.json")));
  }

  /** A reader of the log as it lies on the disk. */
  static FollowingReader reader(JsonNode task, StructType schema, Path folder) {
    LogFiles files = new LocalLogFiles(folder);
    return new FollowingReader(task, schema, files, new LocalLogTail(files, task.get("uuid").asText()));
  }

  private static FollowingReader reader(JsonNode one, Path warehouse) {
    StructType schema = (StructType) DataType.fromJson(one.get("schema").asText());
    return reader(one.get("task"), schema, warehouse.resolve(one.get("task").get("folder").asText()));
  }

  /** The same by a file system of Hadoop's, as it is read in a store. */
  private static FollowingReader ofStore(JsonNode one, Path warehouse) throws IOException {
    String folder = warehouse.resolve(one.get("task").get("folder").asText()).toUri().toString();
    ObjectNode task = one.get("task").deepCopy();
    task.put("folder", folder);
    StructType schema = (StructType) DataType.fromJson(one.get("schema").asText());
    FollowingReaderFactory made = new FollowingReaderFactory(schema, UUID.randomUUID().toString(), new Configuration());
    return (FollowingReader) made.createReader(new FollowedBuckets(task.toString()));
  }

  private static List<String> rows(FollowingReader reader, JsonNode one) throws IOException {
    StructType schema = (StructType) DataType.fromJson(one.get("schema").asText());
    List<String> found = new ArrayList<>();
    while (reader.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord()) {
      InternalRow row = reader.get();
      List<String> values = new ArrayList<>();
      for (int i = 0; i < schema.length(); i++) values.add(text(row, i, schema.fields()[i]));
      found.add(values.toString());
    }
    found.sort(null);
    return found;
  }

  private static String text(InternalRow row, int at, StructField field) {
    if (row.isNullAt(at)) return "null";
    if (field.dataType() instanceof ArrayType) return Arrays.toString(row.getArray(at).toIntArray());
    return String.valueOf(row.get(at, field.dataType()));
  }

  private static List<String> expected(JsonNode one) {
    return expected(one, null);
  }

  /** The rows as Python reads them, or some of their columns. */
  private static List<String> expected(JsonNode one, List<Integer> chosen) {
    List<String> found = new ArrayList<>();
    for (JsonNode row : one.get("rows")) {
      List<String> values = JsonTree.list(row);
      found.add((chosen == null ? values : chosen.stream().map(values::get).toList()).toString());
    }
    found.sort(null);
    return found;
  }

  @Test
  void eachRowOnceAndThenTheRecordThatPythonDecidesAbout() throws IOException {
    for (JsonNode one : cases()) {
      boolean ends = one.get("last").asLong() >= one.get("task").get("next").asLong(); // else the log ends: no waiting
      ((ObjectNode) one.get("task")).put("follows", ends);
      Path warehouse = GOLDEN.resolve(one.get("warehouse").asText());
      for (FollowingReader reader : List.of(reader(one, warehouse), ofStore(one, warehouse))) {
        assertEquals(expected(one), rows(reader, one), one.get("name").asText());
        FollowedOffsets reached = reader.getOffset();
        assertTrue(reached.record <= one.get("last").asLong());
        assertFalse(reader.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord());
        reader.close(); // Arrow says here what was not given back
      }
    }
  }

  /** The same log read with some of its columns, which is what a query that needs no others reads. */
  @Test
  void someColumnsAreThoseOfAllOfThem() throws IOException {
    JsonNode one = cases().get(0);
    StructType whole = (StructType) DataType.fromJson(one.get("schema").asText());
    List<String> all = expected(one);
    Path warehouse = GOLDEN.resolve(one.get("warehouse").asText());
    for (List<Integer> chosen : List.of(List.of(0), List.of(4, 1), List.of(2, 6), List.<Integer>of())) {
      StructType schema = new StructType();
      ObjectNode asked = one.deepCopy();
      for (int column : chosen) schema = schema.add(whole.fields()[column]);
      for (JsonNode layout : asked.get("task").get("layouts")) {
        ArrayNode columns = (ArrayNode) layout.get("columns");
        ArrayNode kept = JsonTree.array();
        for (int column : chosen) kept.add(columns.get(column));
        ((ObjectNode) layout).set("columns", kept);
      }
      asked.put("schema", schema.json());
      List<String> wanted = expected(one, chosen);
      assertEquals(all.size(), wanted.size());
      assertEquals(wanted, rows(reader(asked, warehouse), asked));
      assertEquals(wanted, rows(ofStore(asked, warehouse), asked));
    }
  }

  @Test
  void aReaderThatBeginsInTheMiddleOfARecordGoesOnThere() throws IOException {
    JsonNode one = cases().get(0);
    FollowingReader whole = reader(one, GOLDEN.resolve(one.get("warehouse").asText()));
    ObjectNode later = one.deepCopy();
    List<String> firsts = new ArrayList<>();
    for (int i = 0; i < 7; i++) {
      assertTrue(whole.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord());
      firsts.add("" + whole.get().getLong(0));
    }
    FollowedOffsets reached = (FollowedOffsets) whole.getOffset();
    for (JsonNode bucket : later.get("task").get("buckets")) {
      ((ObjectNode) bucket).put("offset", reached.offsets.get(bucket.get("bucket").asInt()));
    }
    List<String> rest = rows(reader(later, GOLDEN.resolve(one.get("warehouse").asText())), one);
    assertEquals(expected(one).size() - 7, rest.size());
    assertTrue(rest.stream().noneMatch(row -> firsts.stream().anyMatch(id -> row.startsWith("[" + id + ","))));
    whole.close();
  }

  /** The one record of the log that has the number. */
  private static Path copied(JsonNode one, Path folder) throws IOException {
    Path from = GOLDEN.resolve(one.get("warehouse").asText());
    try (Stream<Path> paths = Files.walk(from)) {
      for (Path path : (Iterable<Path>) paths::iterator) {
        Path target = folder.resolve(from.relativize(path).toString());
        if (Files.isRegularFile(path)) Files.copy(path, target);
        else Files.createDirectories(target);
      }
    }
    return folder.resolve(one.get("task").get("folder").asText());
  }

  private static void flip(Path path, int position) throws IOException {
    byte[] bytes = Files.readAllBytes(path);
    bytes[position] ^= 1;
    Files.write(path, bytes);
  }

  @Test
  void aRecordThatIsDamagedOrNewerEndsTheBatch(@TempDir Path folder) throws IOException {
    JsonNode one = cases().get(0);
    Path table = copied(one, folder);
    Path record = table.resolve(CommitRecord.name(16));
    byte[] whole = Files.readAllBytes(record);
    int all = rows(reader(one, folder), one).size();
    String text = new String(whole, StandardCharsets.ISO_8859_1);
    for (int position : new int[] {0, 30, 60, 100, 400, whole.length - 1}) {
      flip(record, position);
      assertTrue(rows(reader(one, folder), one).size() < all, "byte " + position);
      Files.write(record, whole);
    }
    Files.write(record, text.replace("\"version\":1", "\"version\":3").getBytes(StandardCharsets.ISO_8859_1));
    assertTrue(rows(reader(one, folder), one).size() < all);
    Files.write(record, Files.readAllBytes(table.resolve(CommitRecord.name(15))));
    assertTrue(rows(reader(one, folder), one).size() < all, "a copy of another record");
    Files.write(record, whole);
    ObjectNode other = one.deepCopy();
    ((ObjectNode) other.get("task")).put("attempt", "0".repeat(32));
    assertTrue(rows(reader(other, folder), one).size() < all, "another history");
    ((ObjectNode) other.get("task")).put("follows", false);
    assertTrue(rows(reader(other, folder), one).size() < all);
  }

  @Test
  void aDamagedSegmentIsAnErrorThatNamesIt(@TempDir Path folder) throws IOException {
    JsonNode one = cases().get(0);
    Path table = copied(one, folder);
    List<Path> segments;
    try (Stream<Path> paths = Files.list(table.resolve("segments"))) {
      segments = paths.toList();
    }
    int found = 0;
    for (Path segment : segments) {
      byte[] whole = Files.readAllBytes(segment);
      flip(segment, whole.length - 100);
      for (boolean isStore : new boolean[] {false, true}) {
        try {
          rows(isStore ? ofStore(one, folder) : reader(one, folder), one);
        } catch (Exception error) {
          assertTrue(error instanceof AnalysisException, error.toString());
          String place = isStore ? "file:" + segment : segment.toString();
          assertTrue(error.getMessage().contains("CORRUPT_DATA: " + place), error.getMessage());
          found++;
        }
      }
      Files.write(segment, whole);
    }
    assertTrue(found >= 16, found + " of " + segments.size());
    for (Path segment : segments) Files.delete(segment);
    for (FollowingReader reader : List.of(reader(one, folder), ofStore(one, folder))) {
      Exception error = assertThrows(AnalysisException.class, () -> rows(reader, one));
      assertTrue(error.getMessage().contains("is missing although the table names it"), error.getMessage());
    }
  }

  @Test
  void recordsOfOtherTablesAndManifestsThatDoNotMatchAreNotRead(@TempDir Path folder) throws IOException {
    JsonNode one = cases().get(0);
    Path table = copied(one, folder);
    String uuid = one.get("task").get("uuid").asText();
    LogFiles files = new LocalLogFiles(table);
    byte[] record = files.read(CommitRecord.name(19));
    assertEquals(19, CommitRecord.of(record, files, uuid, 19).number);
    assertNull(CommitRecord.of(record, files, "0".repeat(32), 19));
    assertNull(CommitRecord.of(record, files, uuid, 20));
    assertNull(CommitRecord.of(null, files, uuid, 20));
    try (Stream<Path> paths = Files.list(table.resolve("manifests"))) {
      for (Path manifest : paths.toList()) flip(manifest, 500);
    }
    assertNull(CommitRecord.of(record, files, uuid, 19));
  }
}
