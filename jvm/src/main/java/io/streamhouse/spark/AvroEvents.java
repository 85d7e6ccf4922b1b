package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Change events in Avro as JSON: their kind, and the rows before and after.
 *
 * <p>An event gives its text, or the reason why it has none and, where that is so, the id of the schema that it needs
 * and that is not known. Never an error, whatever the bytes are. The driver has asked for the schemas: tasks have them
 * with the plan, and ask nobody.
 */
public final class AvroEvents implements UDF1<byte[], Row> {
  private static final long serialVersionUID = 1L;
  private static final int HEAD_BYTES = 5;
  private static final Set<String> PARTS = Set.of("op", "before", "after");
  private static final JsonFactory JSON = new JsonFactory();
  private static final StructType READ =
      new StructType()
          .add("text", DataTypes.StringType)
          .add("reason", DataTypes.StringType)
          .add("unknown", DataTypes.IntegerType);

  private final HashMap<Integer, String> schemas;
  private final HashMap<Integer, String> refused;
  private final String given;
  private transient Map<Integer, Part[]> known;

  /** A field of the event: what writes it as JSON, or null where it is passed over. */
  private static final class Part {
    private final Schema.Field field;
    private final AvroValue value;

    Part(Schema.Field field) {
      this.field = field;
      value = PARTS.contains(field.name()) ? AvroValues.of(field.schema()) : null;
    }
  }

  /**
   * Reads values of Confluent's wire format, whose schemas are these by id, or of which an id has none for a reason;
   * where a schema is given, values that are Avro and nothing else.
   */
  public AvroEvents(Map<Integer, String> schemas, Map<Integer, String> refused, String given) {
    this.schemas = new HashMap<>(schemas);
    this.refused = new HashMap<>(refused);
    this.given = given;
  }

  /** A column with the texts, reasons and unknown schemas of one that has events. */
  public static Column read(Column events, Map<Integer, String> schemas, Map<Integer, String> refused, String given) {
    UDF1<byte[], Row> function = new AvroEvents(schemas, refused, given);
    return functions.udf(function, READ).apply(events);
  }

  /** The reason why a schema is none of change events; null for one that is. */
  public static String problem(String schema) {
    try {
      parts(schema);
      return null;
    } catch (RuntimeException error) {
      return String.valueOf(error.getMessage());
    }
  }

  @Override
  public Row call(byte[] event) {
    if (event == null) return null;
    if (given != null) return read(event, 0, null, given);
    if (event.length < HEAD_BYTES || event[0] != 0) {
      return refused("it does not begin as Confluent's wire format does, with a zero and four bytes of a schema's id");
    }
    int id = ByteBuffer.wrap(event, 1, HEAD_BYTES - 1).getInt();
    if (refused.containsKey(id)) return refused(refused.get(id));
    if (!schemas.containsKey(id)) return RowFactory.create(null, "its schema " + id + " is not known", id);
    return read(event, HEAD_BYTES, id, schemas.get(id));
  }

  private Row read(byte[] event, int begin, Integer id, String schema) {
    String of = id == null ? "the given schema" : "its schema " + id;
    Part[] parts;
    try {
      if (known == null) known = new HashMap<>();
      parts = known.get(id);
      if (parts == null) known.put(id, parts = parts(schema));
    } catch (RuntimeException error) {
      return refused(of + " is none of change events: " + error.getMessage());
    }
    try {
      return RowFactory.create(json(parts, new AvroBytes(event, begin)), null, null);
    } catch (IOException | RuntimeException | StackOverflowError error) { // of bytes that say anything
      String text = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
      return refused("its bytes are no event of " + of + ": " + text);
    }
  }

  private static String json(Part[] parts, AvroBytes in) throws IOException {
    StringWriter text = new StringWriter();
    try (JsonGenerator out = JSON.createGenerator(text)) {
      out.writeStartObject();
      for (Part part : parts) {
        if (part.value == null) {
          GenericDatumReader.skip(part.field.schema(), in.decoder());
        } else {
          out.writeFieldName(part.field.name());
          part.value.write(in, out);
        }
      }
      out.writeEndObject();
    }
    if (in.left() > 0) throw new IOException(in.left() + " bytes are left over");
    return text.toString();
  }

  private static Part[] parts(String text) {
    Schema schema = new Schema.Parser().setValidateDefaults(false).parse(text);
    if (schema.getType() != Schema.Type.RECORD) throw new IllegalArgumentException("it is no record");
    List<Schema.Field> fields = schema.getFields();
    if (fields.stream().noneMatch(field -> field.name().equals("op"))) {
      throw new IllegalArgumentException("record " + schema.getFullName() + " has no field op");
    }
    return fields.stream().map(Part::new).toArray(Part[]::new);
  }

  private static Row refused(String reason) {
    return RowFactory.create(null, reason, null);
  }
}
