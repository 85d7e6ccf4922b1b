package io.streamhouse.spark.cdc;

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
 * A function that converts change events from Avro to JSON: the kind of change and the rows before and after it.
 *
 *
 * <p>It returns the JSON, or the reason why the event cannot be converted, with the schema id if that schema is
 * unknown. It never throws, whatever the bytes are. The driver fetches the schemas and sends them with the plan, so
 * that tasks do not contact the registry.
 */
public final class AvroEvents implements UDF1<byte[], Row> {
  private static final long serialVersionUID = 1L;
  private static final int HEAD_BYTES = 5;
  private static final Set<String> CONVERTED_FIELDS = Set.of("op", "before", "after");
  private static final JsonFactory JSON = new JsonFactory();
  private static final StructType RESULT =
      new StructType()
          .add("text", DataTypes.StringType)
          .add("reason", DataTypes.StringType)
          .add("unknown", DataTypes.IntegerType);

  private final HashMap<Integer, String> schemas;
  private final HashMap<Integer, String> unusableSchemas;
  private final String fixedSchema;
  private transient Map<Integer, EventField[]> fieldsBySchema;

  /** A field of the event. {@code converter} is null for a field that is skipped. */
  private static final class EventField {
    private final Schema.Field field;
    private final AvroJsonConverter converter;

    EventField(Schema.Field field) {
      this.field = field;
      converter = CONVERTED_FIELDS.contains(field.name()) ? AvroJsonConverters.of(field.schema()) : null;
    }
  }

  /**
   * Creates a decoder of Confluent's wire format with the known schemas and the reasons why others are unusable, both
   * by id. If {@code fixedSchema} is set, events are plain Avro with that schema.
   */
  public AvroEvents(Map<Integer, String> schemas, Map<Integer, String> unusableSchemas, String fixedSchema) {
    this.schemas = new HashMap<>(schemas);
    this.unusableSchemas = new HashMap<>(unusableSchemas);
    this.fixedSchema = fixedSchema;
  }

  /** Returns a column with the JSON, the error and the unknown schema id of each event. */
  public static Column read(
      Column events, Map<Integer, String> schemas, Map<Integer, String> unusableSchemas, String fixedSchema) {
    UDF1<byte[], Row> function = new AvroEvents(schemas, unusableSchemas, fixedSchema);
    return functions.udf(function, RESULT).apply(events);
  }

  /** Returns why a schema is not one of change events, or null if it is. */
  public static String problem(String schema) {
    try {
      parseSchema(schema);
      return null;
    } catch (RuntimeException error) {
      return String.valueOf(error.getMessage());
    }
  }

  @Override
  public Row call(byte[] event) {
    if (event == null) return null;
    if (fixedSchema != null) return read(event, 0, null, fixedSchema);
    if (event.length < HEAD_BYTES || event[0] != 0) {
      return rejected("it does not start with a zero and a schema id, as in Confluent's wire format");
    }
    int id = ByteBuffer.wrap(event, 1, HEAD_BYTES - 1).getInt();
    if (unusableSchemas.containsKey(id)) return rejected(unusableSchemas.get(id));
    if (!schemas.containsKey(id)) return RowFactory.create(null, "its schema " + id + " is not known", id);
    return read(event, HEAD_BYTES, id, schemas.get(id));
  }

  private Row read(byte[] event, int begin, Integer id, String schema) {
    String description = id == null ? "the given schema" : "its schema " + id;
    EventField[] fields;
    try {
      if (fieldsBySchema == null) fieldsBySchema = new HashMap<>();
      fields = fieldsBySchema.get(id);
      if (fields == null) fieldsBySchema.put(id, fields = parseSchema(schema));
    } catch (RuntimeException error) {
      return rejected(description + " is not for change events: " + error.getMessage());
    }
    try {
      return RowFactory.create(toJson(fields, new AvroBytesReader(event, begin)), null, null);
    } catch (IOException | RuntimeException | StackOverflowError error) { // the bytes may be anything
      String text = error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
      return rejected("its bytes do not match " + description + ": " + text);
    }
  }

  private static String toJson(EventField[] fields, AvroBytesReader in) throws IOException {
    StringWriter text = new StringWriter();
    try (JsonGenerator out = JSON.createGenerator(text)) {
      out.writeStartObject();
      for (EventField field : fields) {
        if (field.converter == null) {
          GenericDatumReader.skip(field.field.schema(), in.decoder());
        } else {
          out.writeFieldName(field.field.name());
          field.converter.convert(in, out);
        }
      }
      out.writeEndObject();
    }
    if (in.remaining() > 0) throw new IOException(in.remaining() + " extra bytes");
    return text.toString();
  }

  private static EventField[] parseSchema(String text) {
    Schema schema = new Schema.Parser().setValidateDefaults(false).parse(text);
    if (schema.getType() != Schema.Type.RECORD) throw new IllegalArgumentException("it is not a record");
    List<Schema.Field> fields = schema.getFields();
    if (fields.stream().noneMatch(field -> field.name().equals("op"))) {
      throw new IllegalArgumentException("record " + schema.getFullName() + " has no field op");
    }
    return fields.stream().map(EventField::new).toArray(EventField[]::new);
  }

  private static Row rejected(String reason) {
    return RowFactory.create(null, reason, null);
  }
}
