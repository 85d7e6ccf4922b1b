package io.streamhouse.spark.cdc;

/** A row of an event: its values, which are still strings, and the first problem with them. */
final class EventRow {
  final Object[] values;

  /** Why a key column has no value, or null if all have one. */
  String keyFault;

  /** The problem of another column. It does not matter for a deleted row. */
  String fault;

  EventRow(int size) {
    values = new Object[size];
  }
}
