package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
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
 * Change events in JSON: what each does to a table's rows, whose values are texts yet.
 *
 * <p>A text gives its changes, or the reason why it has none, and the names of columns that the table lacks. Never an
 * error, whatever the text is. JSON is read as RFC 8259 has it: one object, no NaN, nothing behind it.
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
  private static final String NO_OBJECT = "it is no JSON object";

  private transient volatile Reader reader;

  /** What was read from one event. */
  private static final class Event {
    private final Set<String> lacking = new LinkedHashSet<>();
    private String kind;
    private List<EventRow> before;
    private List<EventRow> after;
    private String payload;
  }

  @Override
  public Row call(String text, String spec) {
    Reader found = reader;
    if (found == null || !found.spec.equals(spec)) reader = found = new Reader(spec);
    return found.read(text);
  }

  /** Reads the events of one query. */
  private static final class Reader {
    private final String spec;
    private final EventForms forms;
    private final EventFormat format;
    private volatile Map.Entry<String, Meaning> known;

    Reader(String spec) {
      this.spec = spec;
      forms = new EventForms(spec);
      format = forms.format;
    }

    Row read(String text) {
      if (text == null) return refused(NO_OBJECT);
      try {
        Event event = event(text);
        List<Row> changes = changes(event);
        return RowFactory.create(changes, null, new ArrayList<>(event.lacking));
      } catch (BadEvent error) {
        return refused(error.getMessage());
      } catch (JsonProcessingException error) {
        String what = error.getOriginalMessage().replaceFirst("(?s): enable .*|\\(for .*", "");
        return refused(NO_OBJECT + ": " + what);
      } catch (IOException | RuntimeException | StackOverflowError error) { // of texts that say anything
        return refused("it cannot be read: " + error);
      }
    }

    private Event event(String text) throws IOException {
      Event event = new Event();
      try (JsonParser in = JSON.createParser(text)) {
        if (in.nextToken() != JsonToken.START_OBJECT) throw new BadEvent(NO_OBJECT);
        Meaning known = parts(event, text, in, Meaning.UNKNOWN, format == EventFormat.DEBEZIUM);
        if (hasMore(in)) throw new BadEvent("text follows its JSON object");
        if (event.payload == null) return event;
        Event inner = new Event();
        try (JsonParser payload = JSON.createParser(event.payload)) {
          payload.nextToken();
          parts(inner, event.payload, payload, known, false);
        }
        return inner;
      }
    }

    private static boolean hasMore(JsonParser in) throws IOException {
      try {
        return in.nextToken() != null;
      } catch (JsonProcessingException error) {
        return true;
      }
    }

    /** Reads the object that the parser is at; returns what its schema says, where it has one around it. */
    private Meaning parts(Event event, String text, JsonParser in, Meaning known, boolean mayBeWrapped)
        throws IOException {
      EventValues values = new EventValues(forms, text, in, event.lacking);
      Meaning told = known;
      while (in.nextToken() == JsonToken.FIELD_NAME) {
        String name = in.currentName();
        JsonToken token = in.nextToken();
        if (name.equals(format.kind)) {
          if (event.kind != null) throw new BadEvent("it has '" + name + "' twice");
          event.kind = token == JsonToken.VALUE_NULL ? null : values.slice();
        } else if (name.equals(format.before)) {
          if (event.before != null) throw new BadEvent("it has '" + name + "' twice");
          event.before = rows(values, in, told.part(name), name);
        } else if (name.equals(format.after)) {
          if (event.after != null) throw new BadEvent("it has '" + name + "' twice");
          event.after = rows(values, in, told.part(name), name);
        } else if (mayBeWrapped && token == JsonToken.START_OBJECT && name.equals("schema")) {
          told = meaning(values.slice());
        } else if (mayBeWrapped && token == JsonToken.START_OBJECT && name.equals("payload")) {
          if (event.payload != null) throw new BadEvent("it has 'payload' twice");
          event.payload = values.slice();
        } else {
          in.skipChildren();
        }
      }
      return told;
    }

    /** Events of one table have the same schema, again and again. */
    private Meaning meaning(String text) {
      Map.Entry<String, Meaning> found = known;
      if (found == null || !found.getKey().equals(text)) {
        known = found = Map.entry(text, Meaning.of(JsonTree.parse(text)));
      }
      return found.getValue();
    }

    /** The rows of a part: one, or those of an array in Canal's format; null where it has none. */
    private List<EventRow> rows(EventValues values, JsonParser in, Meaning known, String part) throws IOException {
      boolean isBefore = part.equals(format.before);
      List<EventRow> rows = new ArrayList<>();
      if (format == EventFormat.CANAL && in.currentToken() == JsonToken.START_ARRAY) {
        while (in.nextToken() != JsonToken.END_ARRAY) rows.add(values.row(known, isBefore, part));
      } else {
        EventRow row = values.row(known, isBefore, part);
        if (row != null) rows.add(row);
      }
      return rows;
    }

    private List<Row> changes(Event event) {
      String kind = event.kind;
      if (kind == null) throw new BadEvent("it has no " + format.kind);
      List<Row> changes = new ArrayList<>();
      if (format.others.contains(kind)) return changes;
      boolean isDeleted = format.deletes.contains(kind);
      if (!isDeleted && !format.upserts.contains(kind)) {
        throw new BadEvent("its " + format.kind + " is '" + kind + "', which says nothing about a row");
      }
      boolean isOfBefore = isDeleted && format == EventFormat.DEBEZIUM;
      List<EventRow> rows = isOfBefore ? event.before : event.after;
      if (rows == null || rows.isEmpty()) throw noKey();
      for (int i = 0; i < rows.size(); i++) {
        EventRow row = rows.get(i);
        if (row == null) throw noKey();
        if (row.keyFault != null) throw new BadEvent(row.keyFault);
        if (!hasKey(row)) throw noKey();
        if (isDeleted) {
          changes.add(deletion(row, null));
          continue;
        }
        if (row.fault != null) throw new BadEvent(row.fault);
        EventRow old = event.before != null && i < event.before.size() ? event.before.get(i) : null;
        if (old != null && old.keyFault != null) throw new BadEvent(old.keyFault);
        if (old != null && isMoved(old, row)) changes.add(deletion(old, row));
        changes.add(RowFactory.create("update_after", RowFactory.create(row.values)));
      }
      return changes;
    }

    private boolean hasKey(EventRow row) {
      for (int i = 0; i < forms.isKey.length; i++) if (forms.isKey[i] && row.values[i] == null) return false;
      return true;
    }

    private boolean isMoved(EventRow old, EventRow row) {
      for (int i = 0; i < forms.isKey.length; i++) {
        if (forms.isKey[i] && old.values[i] != null && !old.values[i].equals(row.values[i])) return true;
      }
      return false;
    }

    /** The deletion of a key; the parts of it that did not change may be those of the new row. */
    private Row deletion(EventRow old, EventRow row) {
      Object[] key = new Object[forms.isKey.length];
      for (int i = 0; i < key.length; i++) {
        if (forms.isKey[i]) key[i] = old.values[i] == null && row != null ? row.values[i] : old.values[i];
      }
      return RowFactory.create("delete", RowFactory.create(key));
    }

    private BadEvent noKey() {
      return new BadEvent("its row lacks the primary key " + String.join(", ", forms.key));
    }

    private static Row refused(String reason) {
      return RowFactory.create(List.of(), reason, List.of());
    }
  }
}
