package io.streamhouse.spark.rpc;

/** An error of Python with a condition that the caller maps to one of Spark's own exceptions. */
public final class MappedException extends RuntimeException {
  private static final long serialVersionUID = 1L;
  private final String condition;

  MappedException(String condition, String message) {
    super(message);
    this.condition = condition;
  }

  public boolean hasCondition(String name) {
    return condition.equals(name);
  }
}
