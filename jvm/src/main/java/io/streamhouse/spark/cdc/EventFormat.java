package io.streamhouse.spark.cdc;

import java.util.Set;

/**
 * Formats of change events, with the names of their fields and the kinds of changes.
 *
 *
 * <p>Sources: Debezium's documentation ("change events" of its connectors), Maxwell's data format, Canal's flat
 * messages.
 */
enum EventFormat {
  DEBEZIUM("op", "before", "after", Set.of("r", "c", "u"), Set.of("d"), Set.of("m")),
  MAXWELL(
      "type",
      "old",
      "data",
      Set.of("insert", "update", "bootstrap-insert"),
      Set.of("delete"),
      Set.of("bootstrap-start", "bootstrap-complete", "table-create", "table-alter", "database-create")),
  CANAL(
      "type",
      "old",
      "data",
      Set.of("INSERT", "UPDATE"),
      Set.of("DELETE"),
      Set.of("CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY"));

  final String kindField;
  final String beforeField;
  final String afterField;
  final Set<String> upserts;
  final Set<String> deletes;

  /** Kinds of events that do not change a row. */
  final Set<String> ignored;

  EventFormat(
      String kindField, String beforeField, String afterField, Set<String> upserts, Set<String> deletes,
      Set<String> ignored) {
    this.kindField = kindField;
    this.beforeField = beforeField;
    this.afterField = afterField;
    this.upserts = upserts;
    this.deletes = deletes;
    this.ignored = ignored;
  }

  static EventFormat of(String name) {
    return valueOf(name.substring(0, name.indexOf('-')).toUpperCase(java.util.Locale.ROOT));
  }
}
