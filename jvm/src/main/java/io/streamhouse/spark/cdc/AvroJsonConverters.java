package io.streamhouse.spark.cdc;

import java.io.EOFException;
import java.io.IOException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.temporal.ChronoUnit;
import java.util.Base64;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;

/**
 * Creates the converter for an Avro schema. It is created once per schema.
 *
 *
 * <p>Dates, timestamps and decimals become strings that SQL can cast. Semantic types are those of {@link SemanticType};
 * Kafka Connect's Avro converter stores them as {@code connect.name}.
 */
final class AvroJsonConverters {
  private static final String CONNECT_NAME = "connect.name";
  private static final String SCALE = "scale";

  /** Converters by record schema, because a schema may be recursive. */
  private final IdentityHashMap<Schema, AvroJsonConverter[]> records = new IdentityHashMap<>();

  private AvroJsonConverters() {}

  static AvroJsonConverter of(Schema schema) {
    return new AvroJsonConverters().converter(schema);
  }

  private AvroJsonConverter converter(Schema schema) {
    switch (schema.getType()) {
      case NULL:
        return (in, out) -> out.writeNull();
      case BOOLEAN:
        return (in, out) -> out.writeBoolean(in.decoder().readBoolean());
      case INT:
        if (isDate(schema)) {
          return (in, out) -> out.writeString(LocalDate.ofEpochDay(in.decoder().readInt()).toString());
        }
        return (in, out) -> out.writeNumber(in.decoder().readInt());
      case LONG:
        ChronoUnit unit = timestampUnit(schema);
        if (unit == null) return (in, out) -> out.writeNumber(in.decoder().readLong());
        return (in, out) -> out.writeString(Instant.EPOCH.plus(in.decoder().readLong(), unit).toString());
      case FLOAT:
        return (in, out) -> out.writeNumber(in.decoder().readFloat());
      case DOUBLE:
        return (in, out) -> out.writeNumber(in.decoder().readDouble());
      case STRING:
        return (in, out) -> out.writeString(in.readString());
      case ENUM:
        List<String> symbols = schema.getEnumSymbols();
        return (in, out) -> out.writeString(symbols.get(in.decoder().readEnum()));
      case BYTES:
        return isDecimal(schema)
            ? decimalConverter(AvroBytesReader::readBytes, scale(schema))
            : (in, out) -> out.writeString(Base64.getEncoder().encodeToString(in.readBytes()));
      case FIXED:
        int size = schema.getFixedSize();
        return isDecimal(schema)
            ? decimalConverter(in -> in.readBytes(size), scale(schema))
            : (in, out) -> out.writeString(Base64.getEncoder().encodeToString(in.readBytes(size)));
      case ARRAY:
        return arrayConverter(converter(schema.getElementType()));
      case MAP:
        return mapConverter(converter(schema.getValueType()));
      case UNION:
        AvroJsonConverter[] branches =
            schema.getTypes().stream().map(this::converter).toArray(AvroJsonConverter[]::new);
        return (in, out) -> branches[in.decoder().readIndex()].convert(in, out);
      default:
        return recordConverter(schema);
    }
  }

  private AvroJsonConverter recordConverter(Schema schema) {
    if (SemanticType.isVariableScale(connectName(schema))) return variableScaleConverter(schema);
    List<Schema.Field> fields = schema.getFields();
    AvroJsonConverter[] fieldConverters = records.get(schema);
    if (fieldConverters == null) {
      fieldConverters = new AvroJsonConverter[fields.size()];
      records.put(schema, fieldConverters);
      for (int i = 0; i < fieldConverters.length; i++) fieldConverters[i] = converter(fields.get(i).schema());
    }
    String[] names = fields.stream().map(Schema.Field::name).toArray(String[]::new);
    AvroJsonConverter[] converters = fieldConverters;
    return (in, out) -> {
      out.writeStartObject();
      for (int i = 0; i < names.length; i++) {
        out.writeFieldName(names[i]);
        converters[i].convert(in, out);
      }
      out.writeEndObject();
    };
  }

  private static AvroJsonConverter arrayConverter(AvroJsonConverter item) {
    return (in, out) -> {
      out.writeStartArray();
      for (long count = in.decoder().readArrayStart(); count != 0; count = in.decoder().arrayNext()) {
        for (long i = in.checkItemCount(count); i > 0; i--) item.convert(in, out);
      }
      out.writeEndArray();
    };
  }

  private static AvroJsonConverter mapConverter(AvroJsonConverter item) {
    return (in, out) -> {
      out.writeStartObject();
      for (long count = in.decoder().readMapStart(); count != 0; count = in.decoder().mapNext()) {
        for (long i = in.checkItemCount(count); i > 0; i--) {
          out.writeFieldName(in.readString());
          item.convert(in, out);
        }
      }
      out.writeEndObject();
    };
  }

  /** Reads the unscaled bytes of a decimal. */
  private interface UnscaledBytes {
    byte[] read(AvroBytesReader in) throws IOException;
  }

  private static AvroJsonConverter decimalConverter(UnscaledBytes digits, int scale) {
    return (in, out) -> out.writeString(decimalText(digits.read(in), scale));
  }

  /** Converts a decimal that carries its scale, as sources without a fixed scale write it. */
  private static AvroJsonConverter variableScaleConverter(Schema schema) {
    boolean isScaleFirst = schema.getFields().get(0).name().equals(SCALE);
    return (in, out) -> {
      int scale = isScaleFirst ? in.decoder().readInt() : 0;
      byte[] digits = in.readBytes();
      out.writeString(decimalText(digits, isScaleFirst ? scale : in.decoder().readInt()));
    };
  }

  private static String decimalText(byte[] digits, int scale) throws IOException {
    String text = SemanticType.decimalText(digits, scale);
    if (text == null) throw new EOFException("a decimal of " + digits.length + " bytes and the scale " + scale);
    return text;
  }

  private static ChronoUnit timestampUnit(Schema schema) {
    ChronoUnit unit = SemanticType.timestampUnit(connectName(schema));
    return unit == null ? SemanticType.timestampUnit(logicalType(schema)) : unit;
  }

  private static boolean isDate(Schema schema) {
    return SemanticType.isDate(connectName(schema)) || SemanticType.isDate(logicalType(schema));
  }

  private static boolean isDecimal(Schema schema) {
    return SemanticType.isDecimal(connectName(schema)) || SemanticType.isDecimal(logicalType(schema));
  }

  private static int scale(Schema schema) {
    Object scale = schema.getObjectProp(SCALE);
    if (scale == null && schema.getObjectProp("connect.parameters") instanceof Map) {
      scale = ((Map<?, ?>) schema.getObjectProp("connect.parameters")).get(SCALE);
    }
    return scale == null ? 0 : Integer.parseInt(scale.toString());
  }

  private static String logicalType(Schema schema) {
    String type = schema.getProp("logicalType");
    return type == null ? "" : type;
  }

  private static String connectName(Schema schema) {
    String name = schema.getProp(CONNECT_NAME);
    return name == null ? "" : name;
  }
}
