package io.streamhouse.spark.cdc;

/** Signals that an event cannot be decoded into a row change. */
final class MalformedEventException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  MalformedEventException(String reason) {
    super(reason, null, false, false);
  }
}
