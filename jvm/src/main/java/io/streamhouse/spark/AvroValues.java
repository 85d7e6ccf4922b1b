package io.streamhouse.spark;

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
 * From an Avro schema to the reader of its values, made once for a schema.
 *
 * <p>Values whose schema says what they mean become texts as SQL reads them: dates, timestamps, decimals. The names of
 * semantic types are those of {@link Meaning}, which Connect's converter keeps as {@code connect.name}.
 */
final class AvroValues {
  private static final String CONNECT_NAME = "connect.name";
  private static final String SCALE = "scale";

  /** A schema may have itself within it. */
  private final IdentityHashMap<Schema, AvroValue[]> records = new IdentityHashMap<>();

  private AvroValues() {}

  static AvroValue of(Schema schema) {
    return new AvroValues().value(schema);
  }

  private AvroValue value(Schema schema) {
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
        ChronoUnit unit = unit(schema);
        if (unit == null) return (in, out) -> out.writeNumber(in.decoder().readLong());
        return (in, out) -> out.writeString(Instant.EPOCH.plus(in.decoder().readLong(), unit).toString());
      case FLOAT:
        return (in, out) -> out.writeNumber(in.decoder().readFloat());
      case DOUBLE:
        return (in, out) -> out.writeNumber(in.decoder().readDouble());
      case STRING:
        return (in, out) -> out.writeString(in.text());
      case ENUM:
        List<String> symbols = schema.getEnumSymbols();
        return (in, out) -> out.writeString(symbols.get(in.decoder().readEnum()));
      case BYTES:
        return isDecimal(schema)
            ? decimal(AvroBytes::value, scale(schema))
            : (in, out) -> out.writeString(Base64.getEncoder().encodeToString(in.value()));
      case FIXED:
        int size = schema.getFixedSize();
        return isDecimal(schema)
            ? decimal(in -> in.value(size), scale(schema))
            : (in, out) -> out.writeString(Base64.getEncoder().encodeToString(in.value(size)));
      case ARRAY:
        return array(value(schema.getElementType()));
      case MAP:
        return map(value(schema.getValueType()));
      case UNION:
        AvroValue[] branches = schema.getTypes().stream().map(this::value).toArray(AvroValue[]::new);
        return (in, out) -> branches[in.decoder().readIndex()].write(in, out);
      default:
        return record(schema);
    }
  }

  private AvroValue record(Schema schema) {
    if (Meaning.isVariableScale(name(schema))) return variableScale(schema);
    List<Schema.Field> fields = schema.getFields();
    AvroValue[] values = records.get(schema);
    if (values == null) {
      values = new AvroValue[fields.size()];
      records.put(schema, values);
      for (int i = 0; i < values.length; i++) values[i] = value(fields.get(i).schema());
    }
    String[] names = fields.stream().map(Schema.Field::name).toArray(String[]::new);
    AvroValue[] found = values;
    return (in, out) -> {
      out.writeStartObject();
      for (int i = 0; i < names.length; i++) {
        out.writeFieldName(names[i]);
        found[i].write(in, out);
      }
      out.writeEndObject();
    };
  }

  private static AvroValue array(AvroValue item) {
    return (in, out) -> {
      out.writeStartArray();
      for (long count = in.decoder().readArrayStart(); count != 0; count = in.decoder().arrayNext()) {
        for (long i = in.items(count); i > 0; i--) item.write(in, out);
      }
      out.writeEndArray();
    };
  }

  private static AvroValue map(AvroValue item) {
    return (in, out) -> {
      out.writeStartObject();
      for (long count = in.decoder().readMapStart(); count != 0; count = in.decoder().mapNext()) {
        for (long i = in.items(count); i > 0; i--) {
          out.writeFieldName(in.text());
          item.write(in, out);
        }
      }
      out.writeEndObject();
    };
  }

  /** Gives the bytes of a number. */
  private interface Digits {
    byte[] of(AvroBytes in) throws IOException;
  }

  private static AvroValue decimal(Digits digits, int scale) {
    return (in, out) -> out.writeString(plain(digits.of(in), scale));
  }

  /** A decimal that has its own scale with it, as sources without a fixed one do. */
  private static AvroValue variableScale(Schema schema) {
    boolean isScaleFirst = schema.getFields().get(0).name().equals(SCALE);
    return (in, out) -> {
      int scale = isScaleFirst ? in.decoder().readInt() : 0;
      byte[] digits = in.value();
      out.writeString(plain(digits, isScaleFirst ? scale : in.decoder().readInt()));
    };
  }

  private static String plain(byte[] digits, int scale) throws IOException {
    String plain = Meaning.plain(digits, scale);
    if (plain == null) throw new EOFException("a decimal of " + digits.length + " bytes and the scale " + scale);
    return plain;
  }

  private static ChronoUnit unit(Schema schema) {
    ChronoUnit unit = Meaning.unit(name(schema));
    return unit == null ? Meaning.unit(logical(schema)) : unit;
  }

  private static boolean isDate(Schema schema) {
    return Meaning.isDate(name(schema)) || Meaning.isDate(logical(schema));
  }

  private static boolean isDecimal(Schema schema) {
    return Meaning.isDecimal(name(schema)) || Meaning.isDecimal(logical(schema));
  }

  private static int scale(Schema schema) {
    Object scale = schema.getObjectProp(SCALE);
    if (scale == null && schema.getObjectProp("connect.parameters") instanceof Map) {
      scale = ((Map<?, ?>) schema.getObjectProp("connect.parameters")).get(SCALE);
    }
    return scale == null ? 0 : Integer.parseInt(scale.toString());
  }

  private static String logical(Schema schema) {
    String found = schema.getProp("logicalType");
    return found == null ? "" : found;
  }

  private static String name(Schema schema) {
    String found = schema.getProp(CONNECT_NAME);
    return found == null ? "" : found;
  }
}
