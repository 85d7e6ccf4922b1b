package io.streamhouse.spark.cdc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.streamhouse.spark.util.Json;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.Row;
import org.junit.jupiter.api.Test;

class AvroEventsTest {
  private static final String ROW =
      "{'type':'record','name':'Value','fields':[{'name':'id','type':'long'},{'name':'name','type':['null','string']},"
          + "{'name':'tags','type':{'type':'array','items':'string'}},"
          + "{'name':'more','type':{'type':'map','values':['null','Value']}}]}";
  private static final String SCHEMA =
      ("{'type':'record','name':'Envelope','fields':[{'name':'before','type':['null'," + ROW + "]},"
              + "{'name':'after','type':['null','Value']},{'name':'lsn','type':'long'},{'name':'op','type':'string'}]}")
          .replace('\'', '"');
  private static final Schema PARSED = new Schema.Parser().parse(SCHEMA);

  private static byte[] event(int id) throws IOException {
    Schema of = PARSED.getField("after").schema().getTypes().get(1);
    GenericData.Record inner = new GenericData.Record(of);
    inner.put("id", -1L);
    inner.put("tags", List.of());
    inner.put("more", Map.of());
    GenericData.Record row = new GenericData.Record(of);
    row.put("id", 7L);
    row.put("name", "ü\"");
    row.put("tags", List.of("a", "b"));
    row.put("more", Map.of("k", inner));
    GenericData.Record event = new GenericData.Record(PARSED);
    event.put("after", row);
    event.put("lsn", 5L);
    event.put("op", "c");
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    out.write(new byte[] {0, (byte) (id >> 24), (byte) (id >> 16), (byte) (id >> 8), (byte) id});
    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(out, null);
    new GenericDatumWriter<>(PARSED).write(event, encoder);
    encoder.flush();
    return out.toByteArray();
  }

  private static AvroEvents events() {
    return new AvroEvents(Map.of(3, SCHEMA, 4, "{"), Map.of(5, "it has none"), null);
  }

  @Test
  void anEventHasItsKindAndItsRows() throws IOException {
    Row result = events().call(event(3));
    assertEquals(
        "{\"before\":null,\"after\":{\"id\":7,\"name\":\"ü\\\"\",\"tags\":[\"a\",\"b\"],\"more\":{\"k\":"
            + "{\"id\":-1,\"name\":null,\"tags\":[],\"more\":{}}}},\"op\":\"c\"}",
        result.getString(0));
    assertNull(result.get(1));
    assertNull(result.get(2));
  }

  @Test
  void anUnusableSchemaHasItsReason() throws IOException {
    AvroEvents events = events();
    assertTrue(events.call(event(4)).getString(1).startsWith("its schema 4 is not for change events: "));
    assertEquals("it has none", events.call(event(5)).getString(1));
    assertNull(events.call(event(5)).get(2));
    assertEquals(Integer.valueOf(-6), events.call(event(-6)).get(2));
    assertNull(events.call(null));
  }

  @Test
  void theFunctionIsSerializable() throws IOException, ClassNotFoundException {
    AvroEvents events = events();
    Row before = events.call(event(3));
    ByteArrayOutputStream out = new ByteArrayOutputStream();
    try (ObjectOutputStream objects = new ObjectOutputStream(out)) {
      objects.writeObject(events);
    }
    try (ObjectInputStream objects = new ObjectInputStream(new ByteArrayInputStream(out.toByteArray()))) {
      assertEquals(before, ((AvroEvents) objects.readObject()).call(event(3)));
    }
  }

  @Test
  void damagedBytesNeitherThrowNorAllocateMemory() throws IOException {
    AvroEvents events = events();
    byte[] good = event(3);
    Random random = new Random(1);
    int read = 0;
    for (int round = 0; round < 50_000; round++) {
      byte[] bad = Arrays.copyOf(good, 5 + random.nextInt(good.length + 4));
      for (int i = random.nextInt(4); i >= 0; i--) {
        if (bad.length > 5) bad[5 + random.nextInt(bad.length - 5)] = (byte) random.nextInt(256);
      }
      Row result = events.call(bad);
      assertTrue(result.get(0) == null ^ result.get(1) == null);
      if (result.get(0) != null) {
        read++;
        assertNotNull(Json.parse(result.getString(0)));
      }
    }
    assertTrue(read > 0 && read < 50_000, "some bytes are another event");
  }

  @Test
  void anEndlessRecursiveSchemaDoesNotThrow() {
    byte[] deep = new byte[200_000];
    Arrays.fill(deep, (byte) 2); // one branch, one key, and so on
    assertNotNull(events().call(deepWithHead(deep)).getString(1));
  }

  private static byte[] deepWithHead(byte[] deep) {
    System.arraycopy(new byte[] {0, 0, 0, 0, 3}, 0, deep, 0, 5);
    return deep;
  }

  @Test
  void invalidUtf8IsDamage() throws IOException {
    byte[] bad = event(3);
    for (int i = 5; i < bad.length; i++) if (bad[i] == (byte) 0xc3) bad[i] = (byte) 0xff;
    assertEquals("its bytes do not match its schema 3: CharacterCodingException", events().call(bad).getString(1));
  }

  @Test
  void schemasOfOtherRecordsAreRejected() {
    assertNull(AvroEvents.problem(SCHEMA));
    assertEquals("it is not a record", AvroEvents.problem("\"string\""));
    assertEquals("record Value has no field op", AvroEvents.problem(ROW.replace('\'', '"')));
    assertNotNull(AvroEvents.problem("{"));
  }
}
