package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.io.JsonStringEncoder;
import com.fasterxml.jackson.databind.JsonNode;
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
 * Values of one event, from JSON to texts that SQL casts to their columns' types, at any depth.
 *
 * <p>Numbers keep the text that they have in the event, and never pass through a double. What an event's schema says of
 * a value goes before what the caller says of all.
 */
final class EventValues {
  private static final String UNAVAILABLE = "__debezium_unavailable_value";
  private static final byte[] UNAVAILABLE_BYTES = UNAVAILABLE.getBytes(StandardCharsets.UTF_8);
  private static final Set<String> UNAVAILABLE_TEXTS =
      Set.of(
          UNAVAILABLE,
          Base64.getEncoder().encodeToString(UNAVAILABLE_BYTES),
          UUID.nameUUIDFromBytes(UNAVAILABLE_BYTES).toString());
  private static final String MISSING =
      "not in the event: the source's log lacks large values that did not change; set REPLICA IDENTITY FULL there";
  private static final Pattern WHOLE = Pattern.compile("[+-]?[0-9]{1,19}");
  private static final Pattern DATED = Pattern.compile("\\s*[+-]?[0-9]{4,7}-[0-9].*", Pattern.DOTALL);
  private static final int SHOWN_CHARS = 100;
  private static final int NUMBER_CHARS = 1_000;

  private final EventForms forms;
  private final String text;
  private final JsonParser in;
  private final Set<String> lacking;
  private String fault;

  /** Reads from a parser of a text; names that a table lacks go into a set. */
  EventValues(EventForms forms, String text, JsonParser in, Set<String> lacking) {
    this.forms = forms;
    this.text = text;
    this.in = in;
    this.lacking = lacking;
  }

  /** The row that the parser is at, or null. Of a row {@code before} a change the key counts alone. */
  EventRow row(Meaning meaning, boolean isBefore, String part) throws IOException {
    if (in.currentToken() == JsonToken.VALUE_NULL) return null;
    if (in.currentToken() != JsonToken.START_OBJECT) throw new BadEvent("its " + part + " is no JSON object");
    EventColumn[] columns = forms.columns.parts;
    EventRow row = new EventRow(columns.length);
    boolean[] isThere = new boolean[columns.length];
    while (in.nextToken() == JsonToken.FIELD_NAME) {
      String name = in.currentName();
      in.nextToken();
      Integer place = forms.columns.places.get(name);
      if (place == null && !isBefore) lacking.add(name);
      if (place == null || isBefore && !forms.isKey[place]) {
        in.skipChildren();
        continue;
      }
      if (isThere[place]) throw new BadEvent("its " + part + " has column '" + name + "' twice");
      isThere[place] = true;
      if (in.currentToken() == JsonToken.VALUE_NULL) continue;
      fault = null;
      row.values[place] = value(columns[place], meaning.part(name));
      note(row, place);
    }
    if (!isBefore) {
      for (int i = 0; i < columns.length; i++) {
        if (row.values[i] == null && !columns[i].isNullable && !forms.isKey[i] && row.fault == null) {
          fault = null;
          refuse(columns[i], "null, and NOT NULL");
          note(row, i);
        }
      }
    }
    return row;
  }

  private void note(EventRow row, int place) {
    if (fault == null) return;
    if (forms.isKey[place]) {
      if (row.keyFault == null) row.keyFault = fault;
    } else if (row.fault == null) {
      row.fault = fault;
    }
  }

  private Object value(EventColumn column, Meaning meaning) throws IOException {
    JsonToken token = in.currentToken();
    if (token.isStructEnd()) throw new BadEvent("its " + column.path + " is missing");
    if (token == JsonToken.VALUE_NULL) return column.isNullable ? null : refuse(column, "null, and NOT NULL");
    if (token == JsonToken.VALUE_STRING && isUnavailable(column)) return refuse(column, MISSING);
    DataType type = column.type;
    if (type instanceof ArrayType && token == JsonToken.START_ARRAY) return elements(column, meaning);
    if (type instanceof MapType && !token.isScalarValue()) return entries(column, meaning);
    if (type instanceof StructType && token == JsonToken.START_OBJECT) return fields(column, meaning);
    if (column.parts.length > 0) return refuseType(column, slice());
    if (token.isScalarValue()) return scalar(column, meaning);
    String read = slice();
    if (token == JsonToken.START_OBJECT && (meaning.isVariableScale() || isNumber(type))) {
      String plain = variableScale(read);
      return plain == null ? refuseType(column, read) : number(column, plain);
    }
    return type instanceof StringType || type instanceof VariantType ? read : refuseType(column, read);
  }

  private boolean isUnavailable(EventColumn column) throws IOException {
    return forms.format == EventFormat.DEBEZIUM && UNAVAILABLE_TEXTS.contains(in.getText());
  }

  private List<Object> elements(EventColumn column, Meaning meaning) throws IOException {
    EventColumn element = column.parts[0];
    Meaning inside = meaning.part(element.name);
    List<Object> values = new ArrayList<>();
    int same = 0; // items that are the bytes of Debezium's word, as it is in a list of numbers
    while (in.nextToken() != JsonToken.END_ARRAY) {
      int place = values.size();
      if (same == place && place < UNAVAILABLE_BYTES.length && in.currentToken() == JsonToken.VALUE_NUMBER_INT) {
        if (in.getText().equals(Byte.toString(UNAVAILABLE_BYTES[place]))) same++;
      }
      values.add(value(element, inside));
    }
    if (same == UNAVAILABLE_BYTES.length && values.size() == same) {
      fault = null;
      refuse(column, MISSING);
    }
    return values;
  }

  /** The pairs of a map: an object, or an array of pairs where the keys are no texts. */
  private List<Row> entries(EventColumn column, Meaning meaning) throws IOException {
    EventColumn key = column.parts[0];
    Meaning ofKey = meaning.part(key.name);
    Meaning ofValue = meaning.part(column.parts[1].name);
    Map<Object, Row> pairs = new LinkedHashMap<>();
    boolean isObject = in.currentToken() == JsonToken.START_OBJECT;
    while (!in.nextToken().isStructEnd()) {
      Object ofPair;
      Object value;
      if (isObject) {
        ofPair = isUnavailable(key) ? refuse(key, MISSING) : scalar(key, ofKey);
        in.nextToken();
        value = value(column.parts[1], ofValue);
      } else if (in.currentToken().isStructStart()) { // [key, value] in JSON, {"key": …, "value": …} from Avro
        nextOfPair(column, key);
        ofPair = value(key, ofKey);
        nextOfPair(column, column.parts[1]);
        value = value(column.parts[1], ofValue);
        if (!in.nextToken().isStructEnd()) throw new BadEvent("its " + column.path + " is no list of pairs");
      } else {
        refuseType(column, slice());
        continue;
      }
      if (ofPair != null && pairs.put(ofPair, RowFactory.create(ofPair, value)) != null) {
        refuse(key, "'" + shown(ofPair.toString()) + "', which is there twice");
      }
    }
    return new ArrayList<>(pairs.values());
  }

  private void nextOfPair(EventColumn column, EventColumn part) throws IOException {
    if (in.nextToken() == JsonToken.FIELD_NAME) {
      if (!in.currentName().equals(part.name)) throw new BadEvent("its " + column.path + " is no list of pairs");
      in.nextToken();
    }
  }

  private Row fields(EventColumn column, Meaning meaning) throws IOException {
    Object[] values = new Object[column.parts.length];
    boolean[] isThere = new boolean[values.length];
    while (in.nextToken() == JsonToken.FIELD_NAME) {
      String name = in.currentName();
      in.nextToken();
      Integer place = column.places.get(name);
      if (place == null) {
        lacking.add(column.path + "." + name);
        in.skipChildren();
        continue;
      }
      if (isThere[place]) throw new BadEvent("its " + column.path + " has field '" + name + "' twice");
      isThere[place] = true;
      values[place] = value(column.parts[place], meaning.part(name));
    }
    for (int i = 0; i < values.length; i++) {
      if (!isThere[i] && !column.parts[i].isNullable) refuse(column.parts[i], "null, and NOT NULL");
    }
    return RowFactory.create(values);
  }

  /** The text of a text, number or boolean as SQL casts it to the column's type. */
  private String scalar(EventColumn column, Meaning meaning) throws IOException {
    DataType type = column.type;
    String read = in.getText();
    JsonToken token = in.currentToken();
    boolean isText = token == JsonToken.VALUE_STRING || token == JsonToken.FIELD_NAME;
    if (type instanceof StringType) return string(column, meaning, read, isText);
    if (type instanceof DateType) return date(column, meaning, read, isText);
    if (type instanceof TimestampType || type instanceof TimestampNTZType) return timestamp(column, meaning, read);
    if (isNumber(type)) return number(column, token == JsonToken.VALUE_STRING ? digits(column, meaning, read) : read);
    if (type instanceof BinaryType) return isText ? base64(column, read) : refuseType(column, read);
    if (type instanceof BooleanType && meaning.isBytes()) return refuseType(column, read);
    if (type instanceof VariantType && forms.format == EventFormat.MAXWELL && isText) { // its columns are JSON itself
      return '"' + new String(JsonStringEncoder.getInstance().quoteAsString(read)) + '"';
    }
    return read;
  }

  private String string(EventColumn column, Meaning meaning, String read, boolean isText) {
    if (isText && meaning.isDecimal()) return digits(column, meaning, read);
    if (!isText && meaning.unit() != null) return moment(column, read, meaning.unit());
    if (!isText && meaning.isDate()) return day(column, read);
    return hasUtf8(read) ? read : refuse(column, "a text with half of a surrogate pair, which has no UTF-8");
  }

  private static boolean hasUtf8(String read) {
    for (int i = 0; i < read.length(); i++) {
      if (!Character.isSurrogate(read.charAt(i))) continue;
      if (!Character.isSurrogatePair(read.charAt(i), i + 1 < read.length() ? read.charAt(i + 1) : 0)) return false;
      i++;
    }
    return true;
  }

  private String date(EventColumn column, Meaning meaning, String read, boolean isText) {
    if (!WHOLE.matcher(read).matches()) return isText && isDated(read) ? read : refuseType(column, read);
    if (meaning.unit() != null) return moment(column, read, meaning.unit());
    boolean isDay = meaning.isDate() || !meaning.hasName() && forms.format == EventFormat.DEBEZIUM;
    return isDay ? day(column, read) : refuseType(column, read);
  }

  private String timestamp(EventColumn column, Meaning meaning, String read) {
    if (!WHOLE.matcher(read).matches()) return isDated(read) ? read : refuseType(column, read);
    if (meaning.isDate()) return day(column, read);
    ChronoUnit unit = meaning.hasName() ? meaning.unit() : forms.times;
    return unit == null ? refuseType(column, read) : moment(column, read, unit);
  }

  /** Whether a text begins with a date. SQL takes a time of day for one of today, and digits for a year. */
  private static boolean isDated(String read) {
    return DATED.matcher(read).matches();
  }

  private String moment(EventColumn column, String read, ChronoUnit unit) {
    try {
      return Instant.EPOCH.plus(Long.parseLong(read), unit).toString();
    } catch (NumberFormatException | DateTimeException | ArithmeticException error) {
      return refuseType(column, read);
    }
  }

  private String day(EventColumn column, String read) {
    try {
      return LocalDate.ofEpochDay(Integer.parseInt(read)).toString();
    } catch (NumberFormatException | DateTimeException error) {
      return refuseType(column, read);
    }
  }

  /** The text of a number that the event has as a text: digits, or the bytes of an unscaled number. */
  private String digits(EventColumn column, Meaning meaning, String read) {
    DataType type = column.type;
    int scale = type instanceof DecimalType ? ((DecimalType) type).scale() : 0;
    boolean isExact = type instanceof DecimalType || type instanceof IntegralType;
    boolean isBytes = meaning.isKnown() ? meaning.isBytes() : forms.isBase64 && isExact;
    if (!isBytes) return read.strip();
    if (!meaning.isDecimal() && !meaning.isBits() && meaning.isKnown() && !(type instanceof DecimalType)) {
      return refuseType(column, read);
    }
    byte[] bytes;
    try {
      bytes = Base64.getDecoder().decode(read);
    } catch (IllegalArgumentException error) {
      return refuseType(column, read);
    }
    if (meaning.isBits()) return bits(bytes).toString();
    String plain = Meaning.plain(bytes, meaning.isDecimal() ? meaning.scale() : scale);
    return plain == null ? refuseType(column, read) : plain;
  }

  private static BigInteger bits(byte[] littleEndian) {
    byte[] bytes = new byte[littleEndian.length];
    for (int i = 0; i < bytes.length; i++) bytes[i] = littleEndian[bytes.length - 1 - i];
    return new BigInteger(1, bytes);
  }

  /** Refuses a number that the column's type would round to another one, or to infinity. */
  private String number(EventColumn column, String read) {
    if (read == null) return null;
    if (read.length() > NUMBER_CHARS) return refuseType(column, read);
    try {
      if (column.type instanceof DecimalType) return fitting((DecimalType) column.type, column, read);
      if (column.type instanceof DoubleType || column.type instanceof FloatType) {
        double value = column.type instanceof FloatType ? Float.parseFloat(read) : Double.parseDouble(read);
        boolean hasDigit = read.chars().anyMatch(Character::isDigit);
        return Double.isInfinite(value) && hasDigit ? refuseType(column, read) : read;
      }
    } catch (NumberFormatException error) {
      return column.type instanceof DecimalType ? refuseType(column, read) : read; // such as inf, which SQL knows
    }
    return read;
  }

  private String fitting(DecimalType type, EventColumn column, String read) {
    BigDecimal value = new BigDecimal(read);
    if (value.signum() == 0) return "0";
    long whole = (long) value.precision() - value.scale();
    if (whole > type.precision() - type.scale()) return refuseType(column, read);
    if (value.scale() > type.scale()) {
      BigDecimal stripped = value.stripTrailingZeros();
      if (stripped.scale() > type.scale()) return refuseType(column, read);
    }
    return value.setScale(type.scale()).toPlainString();
  }

  /** The text of a decimal that has its scale with it; null where the object is none. */
  private static String variableScale(String object) {
    JsonNode node = JsonTree.parse(object);
    if (node.size() != 2 || !node.path("scale").canConvertToInt() || !node.path("value").isTextual()) return null;
    try {
      return Meaning.plain(Base64.getDecoder().decode(node.get("value").asText()), node.get("scale").asInt());
    } catch (IllegalArgumentException error) {
      return null;
    }
  }

  /** Bytes are base64, but for Canal, whose texts have a character a byte. */
  private String base64(EventColumn column, String read) {
    if (forms.format != EventFormat.CANAL) return read;
    if (read.chars().anyMatch(character -> character > 0xFF)) return refuseType(column, read);
    return Base64.getEncoder().encodeToString(read.getBytes(StandardCharsets.ISO_8859_1));
  }

  private static boolean isNumber(DataType type) {
    return type instanceof IntegralType
        || type instanceof DecimalType
        || type instanceof DoubleType
        || type instanceof FloatType;
  }

  /** The text of the value that the parser is at, which it passes. */
  String slice() throws IOException {
    int begin = (int) in.currentTokenLocation().getCharOffset();
    in.skipChildren();
    if (in.currentToken().isScalarValue()) return in.getText();
    return text.substring(begin, (int) in.currentLocation().getCharOffset());
  }

  private String refuseType(EventColumn column, String read) {
    return refuse(column, "'" + shown(read) + "', which is no " + column.type.simpleString());
  }

  /** Notes why a value is none of its column; the first reason counts. */
  private String refuse(EventColumn column, String what) {
    if (fault == null) fault = "column '" + column.path + "' is " + what;
    return null;
  }

  private static String shown(String read) {
    return read.length() > SHOWN_CHARS ? read.substring(0, SHOWN_CHARS) : read;
  }
}
