package io.streamhouse.spark.cdc;

/** The reason why an event says nothing about a row. */
final class MalformedEventException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  MalformedEventException(String reason) {
    super(reason, null, false, false);
  }
}
