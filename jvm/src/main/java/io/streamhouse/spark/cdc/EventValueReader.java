package io.streamhouse.spark.cdc;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.io.JsonStringEncoder;
import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.Instant;
import java.time.LocalDate;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.regex.Pattern;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.sql.types.VariantType;

/**
 * Reads the values of one event from JSON into strings that SQL can cast to the column types, at any nesting depth.
 *
 *
 * <p>Numbers keep their text and never pass through a double. The event's own schema takes precedence over the options
 * of the query.
 */
final class EventValueReader {
  private static final String UNAVAILABLE = "__debezium_unavailable_value";
  private static final byte[] UNAVAILABLE_BYTES = UNAVAILABLE.getBytes(StandardCharsets.UTF_8);
  private static final Set<String> UNAVAILABLE_TEXTS =
      Set.of(
          UNAVAILABLE,
          Base64.getEncoder().encodeToString(UNAVAILABLE_BYTES),
          UUID.nameUUIDFromBytes(UNAVAILABLE_BYTES).toString());
  private static final String UNAVAILABLE_REASON =
      "missing, because the source does not log unchanged large values; set REPLICA IDENTITY FULL in the source";
  private static final Pattern INTEGER = Pattern.compile("[+-]?[0-9]{1,19}");
  private static final Pattern DATE_PREFIX = Pattern.compile("\\s*[+-]?[0-9]{4,7}-[0-9].*", Pattern.DOTALL);
  private static final int ABBREVIATED_CHARS = 100;
  private static final int NUMBER_CHARS_MAX = 1_000;

  private final EventDecoderSpec spec;
  private final String text;
  private final JsonParser parser;
  private final Set<String> unknownColumns;
  private String fault;

  /** Reads from {@code parser}. Names that the table does not have are added to {@code unknownColumns}. */
  EventValueReader(EventDecoderSpec spec, String text, JsonParser parser, Set<String> unknownColumns) {
    this.spec = spec;
    this.text = text;
    this.parser = parser;
    this.unknownColumns = unknownColumns;
  }

  /**
   * Reads the row at the parser's position, or returns null. Of a row {@code before} a change, only the key is read.
   */
  EventRow readRow(SemanticType type, boolean isBefore, String part) throws IOException {
    if (parser.currentToken() == JsonToken.VALUE_NULL) return null;
    if (parser.currentToken() != JsonToken.START_OBJECT) {
      throw new MalformedEventException("its " + part + " is not a JSON object");
    }
    EventColumn[] columns = spec.columns.children;
    EventRow row = new EventRow(columns.length);
    boolean[] isPresent = new boolean[columns.length];
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      parser.nextToken();
      Integer ordinal = spec.columns.ordinals.get(name);
      if (ordinal == null && !isBefore) unknownColumns.add(name);
      if (ordinal == null || isBefore && !spec.isKey[ordinal]) {
        parser.skipChildren();
        continue;
      }
      if (isPresent[ordinal]) throw new MalformedEventException("its " + part + " has column '" + name + "' twice");
      isPresent[ordinal] = true;
      if (parser.currentToken() == JsonToken.VALUE_NULL) continue;
      fault = null;
      row.values[ordinal] = readValue(columns[ordinal], type.child(name));
      recordFault(row, ordinal);
    }
    if (!isBefore) {
      for (int i = 0; i < columns.length; i++) {
        if (row.values[i] == null && !columns[i].isNullable && !spec.isKey[i] && row.fault == null) {
          fault = null;
          reject(columns[i], "null, and NOT NULL");
          recordFault(row, i);
        }
      }
    }
    return row;
  }

  private void recordFault(EventRow row, int ordinal) {
    if (fault == null) return;
    if (spec.isKey[ordinal]) {
      if (row.keyFault == null) row.keyFault = fault;
    } else if (row.fault == null) {
      row.fault = fault;
    }
  }

  private Object readValue(EventColumn column, SemanticType semanticType) throws IOException {
    JsonToken token = parser.currentToken();
    if (token.isStructEnd()) throw new MalformedEventException("its " + column.path + " is missing");
    if (token == JsonToken.VALUE_NULL) return column.isNullable ? null : reject(column, "null, and NOT NULL");
    if (token == JsonToken.VALUE_STRING && isUnavailable(column)) return reject(column, UNAVAILABLE_REASON);
    DataType type = column.type;
    if (type instanceof ArrayType && token == JsonToken.START_ARRAY) return readArray(column, semanticType);
    if (type instanceof MapType && !token.isScalarValue()) return readMap(column, semanticType);
    if (type instanceof StructType && token == JsonToken.START_OBJECT) return readStruct(column, semanticType);
    if (column.children.length > 0) return rejectType(column, rawText());
    if (token.isScalarValue()) return readScalar(column, semanticType);
    String raw = rawText();
    if (token == JsonToken.START_OBJECT && (semanticType.isVariableScale() || isNumber(type))) {
      String decimal = variableScaleText(raw);
      return decimal == null ? rejectType(column, raw) : checkNumber(column, decimal);
    }
    return type instanceof StringType || type instanceof VariantType ? raw : rejectType(column, raw);
  }

  private boolean isUnavailable(EventColumn column) throws IOException {
    return spec.format == EventFormat.DEBEZIUM && UNAVAILABLE_TEXTS.contains(parser.getText());
  }

  private List<Object> readArray(EventColumn column, SemanticType semanticType) throws IOException {
    EventColumn element = column.children[0];
    SemanticType elementType = semanticType.child(element.name);
    List<Object> values = new ArrayList<>();
    int matchingBytes = 0; // items that equal the bytes of Debezium's placeholder
    while (parser.nextToken() != JsonToken.END_ARRAY) {
      int index = values.size();
      if (matchingBytes == index && index < UNAVAILABLE_BYTES.length
          && parser.currentToken() == JsonToken.VALUE_NUMBER_INT) {
        if (parser.getText().equals(Byte.toString(UNAVAILABLE_BYTES[index]))) matchingBytes++;
      }
      values.add(readValue(element, elementType));
    }
    if (matchingBytes == UNAVAILABLE_BYTES.length && values.size() == matchingBytes) {
      fault = null;
      reject(column, UNAVAILABLE_REASON);
    }
    return values;
  }

  /** Reads the entries of a map: a JSON object, or an array of pairs if the keys are not strings. */
  private List<Row> readMap(EventColumn column, SemanticType semanticType) throws IOException {
    EventColumn key = column.children[0];
    SemanticType keyType = semanticType.child(key.name);
    SemanticType valueType = semanticType.child(column.children[1].name);
    Map<Object, Row> pairs = new LinkedHashMap<>();
    boolean isObject = parser.currentToken() == JsonToken.START_OBJECT;
    while (!parser.nextToken().isStructEnd()) {
      Object entryKey;
      Object value;
      if (isObject) {
        entryKey = isUnavailable(key) ? reject(key, UNAVAILABLE_REASON) : readScalar(key, keyType);
        parser.nextToken();
        value = readValue(column.children[1], valueType);
      } else if (parser.currentToken().isStructStart()) { // [key, value] in JSON, {"key": …, "value": …} from Avro
        advanceInPair(column, key);
        entryKey = readValue(key, keyType);
        advanceInPair(column, column.children[1]);
        value = readValue(column.children[1], valueType);
        if (!parser.nextToken().isStructEnd()) {
          throw new MalformedEventException("its " + column.path + " is not a list of pairs");
        }
      } else {
        rejectType(column, rawText());
        continue;
      }
      if (entryKey != null && pairs.put(entryKey, RowFactory.create(entryKey, value)) != null) {
        reject(key, "'" + abbreviate(entryKey.toString()) + "', a duplicate");
      }
    }
    return new ArrayList<>(pairs.values());
  }

  private void advanceInPair(EventColumn column, EventColumn part) throws IOException {
    if (parser.nextToken() == JsonToken.FIELD_NAME) {
      if (!parser.currentName().equals(part.name)) {
        throw new MalformedEventException("its " + column.path + " is not a list of pairs");
      }
      parser.nextToken();
    }
  }

  private Row readStruct(EventColumn column, SemanticType semanticType) throws IOException {
    Object[] values = new Object[column.children.length];
    boolean[] isPresent = new boolean[values.length];
    while (parser.nextToken() == JsonToken.FIELD_NAME) {
      String name = parser.currentName();
      parser.nextToken();
      Integer ordinal = column.ordinals.get(name);
      if (ordinal == null) {
        unknownColumns.add(column.path + "." + name);
        parser.skipChildren();
        continue;
      }
      if (isPresent[ordinal]) {
        throw new MalformedEventException("its " + column.path + " has field '" + name + "' twice");
      }
      isPresent[ordinal] = true;
      values[ordinal] = readValue(column.children[ordinal], semanticType.child(name));
    }
    for (int i = 0; i < values.length; i++) {
      if (!isPresent[i] && !column.children[i].isNullable) reject(column.children[i], "null, and NOT NULL");
    }
    return RowFactory.create(values);
  }

  /** Returns a string, number or boolean in the form that SQL casts to the column's type. */
  private String readScalar(EventColumn column, SemanticType semanticType) throws IOException {
    DataType type = column.type;
    String read = parser.getText();
    JsonToken token = parser.currentToken();
    boolean isText = token == JsonToken.VALUE_STRING || token == JsonToken.FIELD_NAME;
    if (type instanceof StringType) return stringText(column, semanticType, read, isText);
    if (type instanceof DateType) return dateText(column, semanticType, read, isText);
    if (type instanceof TimestampType || type instanceof TimestampNTZType) {
      return timestampText(column, semanticType, read);
    }
    if (isNumber(type)) {
      return checkNumber(column, token == JsonToken.VALUE_STRING ? numberText(column, semanticType, read) : read);
    }
    if (type instanceof BinaryType) return isText ? base64Text(column, read) : rejectType(column, read);
    if (type instanceof BooleanType && semanticType.isBytes()) return rejectType(column, read);
    // Maxwell's JSON columns are JSON text
    if (type instanceof VariantType && spec.format == EventFormat.MAXWELL && isText) {
      return '"' + new String(JsonStringEncoder.getInstance().quoteAsString(read)) + '"';
    }
    return read;
  }

  private String stringText(EventColumn column, SemanticType semanticType, String read, boolean isText) {
    if (isText && semanticType.isDecimal()) return numberText(column, semanticType, read);
    if (!isText && semanticType.timestampUnit() != null) return instantText(column, read, semanticType.timestampUnit());
    if (!isText && semanticType.isDate()) return epochDayText(column, read);
    return isValidUtf16(read) ? read : reject(column, "text with an unpaired surrogate, which is not UTF-8");
  }

  private static boolean isValidUtf16(String read) {
    for (int i = 0; i < read.length(); i++) {
      if (!Character.isSurrogate(read.charAt(i))) continue;
      if (!Character.isSurrogatePair(read.charAt(i), i + 1 < read.length() ? read.charAt(i + 1) : 0)) return false;
      i++;
    }
    return true;
  }

  private String dateText(EventColumn column, SemanticType semanticType, String read, boolean isText) {
    if (!INTEGER.matcher(read).matches()) return isText && startsWithDate(read) ? read : rejectType(column, read);
    if (semanticType.timestampUnit() != null) return instantText(column, read, semanticType.timestampUnit());
    boolean isDay = semanticType.isDate() || !semanticType.hasName() && spec.format == EventFormat.DEBEZIUM;
    return isDay ? epochDayText(column, read) : rejectType(column, read);
  }

  private String timestampText(EventColumn column, SemanticType semanticType, String read) {
    if (!INTEGER.matcher(read).matches()) return startsWithDate(read) ? read : rejectType(column, read);
    if (semanticType.isDate()) return epochDayText(column, read);
    ChronoUnit unit = semanticType.hasName() ? semanticType.timestampUnit() : spec.timestampUnit;
    return unit == null ? rejectType(column, read) : instantText(column, read, unit);
  }

  /** Returns whether a text starts with a date. SQL would read a time of day as today's, and digits as a year. */
  private static boolean startsWithDate(String read) {
    return DATE_PREFIX.matcher(read).matches();
  }

  private String instantText(EventColumn column, String read, ChronoUnit unit) {
    try {
      return Instant.EPOCH.plus(Long.parseLong(read), unit).toString();
    } catch (NumberFormatException | DateTimeException | ArithmeticException error) {
      return rejectType(column, read);
    }
  }

  private String epochDayText(EventColumn column, String read) {
    try {
      return LocalDate.ofEpochDay(Integer.parseInt(read)).toString();
    } catch (NumberFormatException | DateTimeException error) {
      return rejectType(column, read);
    }
  }

  /** Returns the text of a number that the event has as a string: digits, or the bytes of an unscaled number. */
  private String numberText(EventColumn column, SemanticType semanticType, String read) {
    DataType type = column.type;
    int scale = type instanceof DecimalType ? ((DecimalType) type).scale() : 0;
    boolean isExact = type instanceof DecimalType || type instanceof IntegralType;
    boolean isBytes = semanticType.isKnown() ? semanticType.isBytes() : spec.hasBase64Decimals && isExact;
    if (!isBytes) return read.strip();
    if (!semanticType.isDecimal() && !semanticType.isBits() && semanticType.isKnown()
        && !(type instanceof DecimalType)) {
      return rejectType(column, read);
    }
    byte[] bytes;
    try {
      bytes = Base64.getDecoder().decode(read);
    } catch (IllegalArgumentException error) {
      return rejectType(column, read);
    }
    if (semanticType.isBits()) return unsignedLittleEndian(bytes).toString();
    String decimal = SemanticType.decimalText(bytes, semanticType.isDecimal() ? semanticType.scale() : scale);
    return decimal == null ? rejectType(column, read) : decimal;
  }

  private static BigInteger unsignedLittleEndian(byte[] littleEndian) {
    byte[] bytes = new byte[littleEndian.length];
    for (int i = 0; i < bytes.length; i++) bytes[i] = littleEndian[bytes.length - 1 - i];
    return new BigInteger(1, bytes);
  }

  /** Rejects a number that the column's type would round or turn into infinity. */
  private String checkNumber(EventColumn column, String read) {
    if (read == null) return null;
    if (read.length() > NUMBER_CHARS_MAX) return rejectType(column, read);
    try {
      if (column.type instanceof DecimalType) return fitDecimal((DecimalType) column.type, column, read);
      if (column.type instanceof DoubleType || column.type instanceof FloatType) {
        double value = column.type instanceof FloatType ? Float.parseFloat(read) : Double.parseDouble(read);
        boolean hasDigit = read.chars().anyMatch(Character::isDigit);
        return Double.isInfinite(value) && hasDigit ? rejectType(column, read) : read;
      }
    } catch (NumberFormatException error) {
      return column.type instanceof DecimalType ? rejectType(column, read) : read; // such as inf, which SQL accepts
    }
    return read;
  }

  private String fitDecimal(DecimalType type, EventColumn column, String read) {
    BigDecimal value = new BigDecimal(read);
    if (value.signum() == 0) return "0";
    long integerDigits = (long) value.precision() - value.scale();
    if (integerDigits > type.precision() - type.scale()) return rejectType(column, read);
    if (value.scale() > type.scale()) {
      BigDecimal stripped = value.stripTrailingZeros();
      if (stripped.scale() > type.scale()) return rejectType(column, read);
    }
    return value.setScale(type.scale()).toPlainString();
  }

  /** Returns the text of a decimal that carries its scale, or null if the object is not one. */
  private static String variableScaleText(String object) {
    JsonNode node = Json.parse(object);
    if (node.size() != 2 || !node.path("scale").canConvertToInt() || !node.path("value").isTextual()) return null;
    try {
      return SemanticType.decimalText(Base64.getDecoder().decode(node.get("value").asText()),
          node.get("scale").asInt());
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  /** Returns binary data as base64. Canal instead writes one character per byte. */
  private String base64Text(EventColumn column, String read) {
    if (spec.format != EventFormat.CANAL) return read;
    if (read.chars().anyMatch(character -> character > 0xFF)) return rejectType(column, read);
    return Base64.getEncoder().encodeToString(read.getBytes(StandardCharsets.ISO_8859_1));
  }

  private static boolean isNumber(DataType type) {
    return type instanceof IntegralType
        || type instanceof DecimalType
        || type instanceof DoubleType
        || type instanceof FloatType;
  }

  /** Returns the JSON text of the value at the parser's position and skips the value. */
  String rawText() throws IOException {
    int begin = (int) parser.currentTokenLocation().getCharOffset();
    parser.skipChildren();
    if (parser.currentToken().isScalarValue()) return parser.getText();
    return text.substring(begin, (int) parser.currentLocation().getCharOffset());
  }

  private String rejectType(EventColumn column, String read) {
    return reject(column, "'" + abbreviate(read) + "', expected " + column.type.simpleString());
  }

  /** Records why a value does not fit its column. The first reason is kept. */
  private String reject(EventColumn column, String problem) {
    if (fault == null) fault = "column '" + column.path + "' is " + problem;
    return null;
  }

  private static String abbreviate(String read) {
    return read.length() > ABBREVIATED_CHARS ? read.substring(0, ABBREVIATED_CHARS) : read;
  }
}
