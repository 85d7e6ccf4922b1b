package io.streamhouse.spark.cdc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import java.util.List;
import java.util.Random;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

class JsonEventsTest {
  private static final StructType COLUMNS =
      new StructType()
          .add("id", DataTypes.LongType)
          .add("v", DataTypes.StringType)
          .add("d", DataTypes.createDecimalType(20, 4))
          .add("xs", DataTypes.createArrayType(DataTypes.TimestampType))
          .add("kv", DataTypes.createMapType(DataTypes.IntegerType, DataTypes.DateType));

  private static String spec(String format) {
    ObjectNode spec = Json.object().put("format", format).put("times", "micros").put("decimals", "text");
    spec.set("columns", Json.parse(COLUMNS.json()));
    spec.set("key", Json.array().add("id"));
    return spec.toString();
  }

  private static Row read(String event) {
    return new JsonEvents().call(event, spec("debezium-json"));
  }

  private static String after(String columns) {
    Row result = read("{\"op\":\"c\",\"after\":{\"id\":1," + columns + "}}");
    if (result.get(1) != null) return result.getString(1);
    return ((Row) ((List<?>) result.get(0)).get(0)).get(1).toString();
  }

  @Test
  void numbersKeepTheirText() {
    assertEquals("[1,1.10,null,null,null]", after("\"v\":1.10"));
    assertEquals("[1,{\"a\": [1.10, 1e5]},null,null,null]", after("\"v\":{\"a\": [1.10, 1e5]}"));
    assertEquals("[1,null,1234567890123456.7891,null,null]", after("\"d\":1234567890123456.7891"));
    assertEquals("[1,null,12300000000000.0000,null,null]", after("\"d\":1.23E13"));
    String large = "x".repeat(100_000);
    String object = "{\"a\":\"" + large + "\",\"b\":2.50}";
    assertEquals("[1," + object + ",null,null,null]", after("\"v\":" + object));
  }

  @Test
  void nestedValuesAreReadByTheirType() {
    assertEquals(
        "[1,null,null,[1970-01-01T00:00:00.000001Z, null],[[1,1970-01-02], [2,null]]]",
        after("\"xs\":[1,null],\"kv\":[[1,1],[2,null]]"));
  }

  @Test
  void invalidJsonIsAMalformedEvent() {
    for (String bad :
        List.of("", "1", "[1]", "{", "{\"op\":NaN}", "{\"op\":-Infinity}", "{'op':1}", "{\"op\":01}", "{\"op\":1,}")) {
      assertTrue(read(bad).getString(1).startsWith("it is not a JSON object"), bad);
    }
    assertEquals("it is not a JSON object: Non-standard token 'NaN'", read("{\"op\":NaN}").getString(1));
    for (String behind : List.of(" x", "{}", ",", " null")) {
      assertEquals("text follows its JSON object", read("{\"op\":\"m\"}" + behind).getString(1), behind);
    }
    assertNull(read("{\"op\":\"m\"} \n").get(1));
    assertEquals("its after is not a JSON object", read("{\"op\":\"c\",\"after\":5}").getString(1));
    assertEquals("it has 'op' twice", read("{\"op\":\"c\",\"op\":\"d\"}").getString(1));
  }

  @Test
  void theOrderOfSchemaAndPayloadDoesNotMatter() {
    String schema =
        "\"schema\":{\"type\":\"struct\",\"fields\":[{\"field\":\"after\",\"type\":\"struct\",\"fields\":["
            + "{\"field\":\"xs\",\"type\":\"array\",\"items\":"
            + "{\"type\":\"int64\",\"name\":\"io.debezium.time.Timestamp\"}}"
            + "]}]}";
    String payload = "\"payload\":{\"op\":\"c\",\"after\":{\"id\":1,\"xs\":[1]}}";
    for (String event : List.of("{" + schema + "," + payload + "}", "{" + payload + ", " + schema + " }")) {
      Row result = read(event);
      assertNull(result.get(1));
      assertTrue(result.get(0).toString().contains("1970-01-01T00:00:00.001Z"), event);
    }
  }

  @Test
  void damagedTextsDoNotThrow() {
    String good =
        "{\"op\":\"u\",\"before\":{\"id\":1},\"after\":"
            + "{\"id\":2,\"v\":\"\\u00e4\",\"d\":1.5,\"xs\":[1],\"kv\":{\"1\":2}}}";
    String spec = spec("debezium-json");
    Random random = new Random(1);
    JsonEvents events = new JsonEvents();
    int read = 0;
    for (int round = 0; round < 10_000; round++) {
      StringBuilder bad = new StringBuilder(good);
      for (int i = random.nextInt(3); i >= 0; i--) {
        int place = random.nextInt(bad.length());
        bad.setCharAt(place, good.charAt(random.nextInt(good.length())));
        if (random.nextInt(5) == 0) bad.setLength(place + 1);
      }
      Row result = events.call(bad.toString(), spec);
      if (result.get(1) == null) read++;
      else assertTrue(!result.getString(1).startsWith("it cannot be read"), bad + ": " + result.getString(1));
    }
    assertTrue(read > 0 && read < 10_000);
    assertTrue(read("{\"op\":" + "[".repeat(100_000)).getString(1).startsWith("it is not a JSON object"));
  }
}
