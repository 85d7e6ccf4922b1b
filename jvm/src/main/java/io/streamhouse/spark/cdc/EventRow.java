package io.streamhouse.spark.cdc;

/** A row of an event: the texts of its columns, and what is wrong with them. */
final class EventRow {
  final Object[] values;

  /** Why a column of the key has no value; null where all have. */
  String keyFault;

  /** The same of the other columns, which say nothing of a deleted row. */
  String fault;

  EventRow(int size) {
    values = new Object[size];
  }
}
