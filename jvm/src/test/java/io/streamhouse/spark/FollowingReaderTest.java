package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
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

  private static FollowingReader reader(JsonNode one, Path warehouse) {
    ObjectNode task = one.get("task").deepCopy();
    task.put("folder", warehouse.resolve(task.get("folder").asText()).toString());
    return new FollowingReader(task, (StructType) DataType.fromJson(one.get("schema").asText()));
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
    List<String> found = new ArrayList<>();
    for (JsonNode row : one.get("rows")) found.add(JsonTree.list(row).toString());
    found.sort(null);
    return found;
  }

  @Test
  void eachRowOnceAndThenTheRecordThatPythonDecidesAbout() throws IOException {
    for (JsonNode one : cases()) {
      boolean ends = one.get("last").asLong() >= one.get("task").get("next").asLong(); // else the log ends: no waiting
      ((ObjectNode) one.get("task")).put("follows", ends);
      FollowingReader reader = reader(one, GOLDEN.resolve(one.get("warehouse").asText()));
      assertEquals(expected(one), rows(reader, one), one.get("name").asText());
      FollowedOffsets reached = (FollowedOffsets) reader.getOffset();
      assertTrue(reached.record <= one.get("last").asLong());
      assertFalse(reader.nextWithTimeout(System.currentTimeMillis(), WAIT_MS).hasRecord());
      reader.close(); // Arrow says here what was not given back
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
    Path record = CommitRecord.path(copied(one, folder), 16);
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
    Files.write(record, Files.readAllBytes(CommitRecord.path(record.getParent().getParent(), 15)));
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
      try {
        rows(reader(one, folder), one);
      } catch (Exception error) {
        assertTrue(error instanceof AnalysisException, error.toString());
        assertTrue(error.getMessage().contains("CORRUPT_DATA: " + segment), error.getMessage());
        found++;
      }
      Files.write(segment, whole);
    }
    assertTrue(found >= 8, found + " of " + segments.size());
    for (Path segment : segments) Files.delete(segment);
    assertThrows(Exception.class, () -> rows(reader(one, folder), one));
  }

  @Test
  void recordsOfOtherTablesAndManifestsThatDoNotMatchAreNotRead(@TempDir Path folder) throws IOException {
    JsonNode one = cases().get(0);
    Path table = copied(one, folder);
    String uuid = one.get("task").get("uuid").asText();
    assertEquals(19, CommitRecord.read(table, uuid, 19).number);
    assertNull(CommitRecord.read(table, "0".repeat(32), 19));
    try (Stream<Path> paths = Files.list(table.resolve("manifests"))) {
      for (Path manifest : paths.toList()) flip(manifest, 500);
    }
    assertNull(CommitRecord.read(table, uuid, 19));
  }
}
