package io.streamhouse.spark;

/** The reason why an event says nothing about a row. */
final class BadEvent extends RuntimeException {
  private static final long serialVersionUID = 1L;

  BadEvent(String reason) {
    super(reason, null, false, false);
  }
}
