package io.streamhouse.spark.cdc;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import io.streamhouse.spark.util.Json;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.api.java.UDF2;

/**
 * A function that decodes change events from JSON into row changes whose values are still strings.
 *
 *
 * <p>It returns the changes, or the reason why the event is malformed, and the columns that the table does not have. It
 * never throws, whatever the text is. JSON is read strictly as RFC 8259: one object, no NaN and no trailing content.
 */
public final class JsonEvents implements UDF2<String, String, Row> {
  private static final long serialVersionUID = 1L;
  private static final JsonFactory JSON =
      JsonFactory.builder()
          .streamReadConstraints(
              StreamReadConstraints.builder()
                  .maxStringLength(Integer.MAX_VALUE)
                  .maxNameLength(Integer.MAX_VALUE)
                  .build())
          .build();
  private static final String NO_OBJECT = "it is not a JSON object";

  private transient volatile EventReader reader;

  /** The parts of one event. */
  private static final class Event {
    private final Set<String> unknownColumns = new LinkedHashSet<>();
    private String kind;
    private List<EventRow> before;
    private List<EventRow> after;
    private String payload;
  }

  @Override
  public Row call(String text, String spec) {
    EventReader eventReader = reader;
    if (eventReader == null || !eventReader.spec.equals(spec)) reader = eventReader = new EventReader(spec);
    return eventReader.read(text);
  }

  /** Decodes the events of one query. */
  private static final class EventReader {
    private final String spec;
    private final EventDecoderSpec decoderSpec;
    private final EventFormat format;
    private volatile Map.Entry<String, SemanticType> cachedSchema;

    EventReader(String spec) {
      this.spec = spec;
      decoderSpec = new EventDecoderSpec(spec);
      format = decoderSpec.format;
    }

    Row read(String text) {
      if (text == null) return rejected(NO_OBJECT);
      try {
        Event event = parseEvent(text);
        List<Row> changes = toChanges(event);
        return RowFactory.create(changes, null, new ArrayList<>(event.unknownColumns));
      } catch (MalformedEventException error) {
        return rejected(error.getMessage());
      } catch (JsonProcessingException error) {
        String problem = error.getOriginalMessage().replaceFirst("(?s): enable .*|\\(for .*", "");
        return rejected(NO_OBJECT + ": " + problem);
      } catch (IOException | RuntimeException | StackOverflowError error) { // the text may be anything
        return rejected("it cannot be read: " + error);
      }
    }

    private Event parseEvent(String text) throws IOException {
      Event event = new Event();
      try (JsonParser parser = JSON.createParser(text)) {
        if (parser.nextToken() != JsonToken.START_OBJECT) throw new MalformedEventException(NO_OBJECT);
        SemanticType schema = readParts(event, text, parser, SemanticType.UNKNOWN, format == EventFormat.DEBEZIUM);
        if (hasTrailingContent(parser)) throw new MalformedEventException("text follows its JSON object");
        if (event.payload == null) return event;
        Event payloadEvent = new Event();
        try (JsonParser payload = JSON.createParser(event.payload)) {
          payload.nextToken();
          readParts(payloadEvent, event.payload, payload, schema, false);
        }
        return payloadEvent;
      }
    }

    private static boolean hasTrailingContent(JsonParser parser) throws IOException {
      try {
        return parser.nextToken() != null;
      } catch (JsonProcessingException error) {
        return true;
      }
    }

    /** Reads the object at the parser's position and returns the schema of its envelope, if it has one. */
    private SemanticType readParts(Event event, String text, JsonParser parser, SemanticType outerSchema,
        boolean mayBeWrapped)
        throws IOException {
      EventValueReader values = new EventValueReader(decoderSpec, text, parser, event.unknownColumns);
      SemanticType schema = outerSchema;
      while (parser.nextToken() == JsonToken.FIELD_NAME) {
        String name = parser.currentName();
        JsonToken token = parser.nextToken();
        if (name.equals(format.kindField)) {
          if (event.kind != null) throw new MalformedEventException("it has '" + name + "' twice");
          event.kind = token == JsonToken.VALUE_NULL ? null : values.rawText();
        } else if (name.equals(format.beforeField)) {
          if (event.before != null) throw new MalformedEventException("it has '" + name + "' twice");
          event.before = readRows(values, parser, schema.child(name), name);
        } else if (name.equals(format.afterField)) {
          if (event.after != null) throw new MalformedEventException("it has '" + name + "' twice");
          event.after = readRows(values, parser, schema.child(name), name);
        } else if (mayBeWrapped && token == JsonToken.START_OBJECT && name.equals("schema")) {
          schema = parseSchema(values.rawText());
        } else if (mayBeWrapped && token == JsonToken.START_OBJECT && name.equals("payload")) {
          if (event.payload != null) throw new MalformedEventException("it has 'payload' twice");
          event.payload = values.rawText();
        } else {
          parser.skipChildren();
        }
      }
      return schema;
    }

    /** Returns the parsed schema. It is cached, because consecutive events of a table have the same one. */
    private SemanticType parseSchema(String text) {
      Map.Entry<String, SemanticType> cached = cachedSchema;
      if (cached == null || !cached.getKey().equals(text)) {
        cachedSchema = cached = Map.entry(text, SemanticType.of(Json.parse(text)));
      }
      return cached.getValue();
    }

    /** Returns the rows of a field: one, or several in Canal's format. Returns null if there is none. */
    private List<EventRow> readRows(
        EventValueReader values, JsonParser parser, SemanticType schema, String part) throws IOException {
      boolean isBefore = part.equals(format.beforeField);
      List<EventRow> rows = new ArrayList<>();
      if (format == EventFormat.CANAL && parser.currentToken() == JsonToken.START_ARRAY) {
        while (parser.nextToken() != JsonToken.END_ARRAY) rows.add(values.readRow(schema, isBefore, part));
      } else {
        EventRow row = values.readRow(schema, isBefore, part);
        if (row != null) rows.add(row);
      }
      return rows;
    }

    private List<Row> toChanges(Event event) {
      String kind = event.kind;
      if (kind == null) throw new MalformedEventException("it has no " + format.kindField);
      List<Row> changes = new ArrayList<>();
      if (format.ignored.contains(kind)) return changes;
      boolean isDeleted = format.deletes.contains(kind);
      if (!isDeleted && !format.upserts.contains(kind)) {
        throw new MalformedEventException("its " + format.kindField + " is '" + kind
            + "', which is unknown");
      }
      boolean isOfBefore = isDeleted && format == EventFormat.DEBEZIUM;
      List<EventRow> rows = isOfBefore ? event.before : event.after;
      if (rows == null || rows.isEmpty()) throw missingKeyError();
      for (int i = 0; i < rows.size(); i++) {
        EventRow row = rows.get(i);
        if (row == null) throw missingKeyError();
        if (row.keyFault != null) throw new MalformedEventException(row.keyFault);
        if (!hasKey(row)) throw missingKeyError();
        if (isDeleted) {
          changes.add(deleteChange(row, null));
          continue;
        }
        if (row.fault != null) throw new MalformedEventException(row.fault);
        EventRow before = event.before != null && i < event.before.size() ? event.before.get(i) : null;
        if (before != null && before.keyFault != null) throw new MalformedEventException(before.keyFault);
        if (before != null && hasNewKey(before, row)) changes.add(deleteChange(before, row));
        changes.add(RowFactory.create("update_after", RowFactory.create(row.values)));
      }
      return changes;
    }

    private boolean hasKey(EventRow row) {
      for (int i = 0; i < decoderSpec.isKey.length; i++) {
        if (decoderSpec.isKey[i] && row.values[i] == null) return false;
      }
      return true;
    }

    private boolean hasNewKey(EventRow before, EventRow row) {
      for (int i = 0; i < decoderSpec.isKey.length; i++) {
        if (decoderSpec.isKey[i] && before.values[i] != null && !before.values[i].equals(row.values[i])) return true;
      }
      return false;
    }

    /** Returns the deletion of a key. Key columns that did not change are taken from the new row. */
    private Row deleteChange(EventRow before, EventRow row) {
      Object[] key = new Object[decoderSpec.isKey.length];
      for (int i = 0; i < key.length; i++) {
        if (decoderSpec.isKey[i]) key[i] = before.values[i] == null && row != null ? row.values[i] : before.values[i];
      }
      return RowFactory.create("delete", RowFactory.create(key));
    }

    private MalformedEventException missingKeyError() {
      return new MalformedEventException("its row has no primary key " + String.join(", ", decoderSpec.key));
    }

    private static Row rejected(String reason) {
      return RowFactory.create(List.of(), reason, List.of());
    }
  }
}
