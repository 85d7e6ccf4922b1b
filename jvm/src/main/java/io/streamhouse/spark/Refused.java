package io.streamhouse.spark;

/** An error of Python's that the caller turns into one that Spark knows. */
final class Refused extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String condition;

  Refused(String condition, String message) {
    super(message);
    this.condition = condition;
  }

  boolean is(String name) {
    return condition.equals(name);
  }
}
