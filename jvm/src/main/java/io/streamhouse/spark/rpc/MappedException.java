package io.streamhouse.spark.rpc;

/** An error of Python's that the caller turns into one that Spark knows. */
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
