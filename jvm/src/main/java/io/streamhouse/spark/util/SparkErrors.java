package io.streamhouse.spark.util;

import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;

/** Creates and recognizes errors as Spark shows them. */
public final class SparkErrors {
  private static final Pattern TYPED_ERROR = Pattern.compile("(?m)^streamhouse_spark\\.errors\\.\\w+: (.+)$");
  private static final Pattern CONDITION = Pattern.compile("^([A-Z][A-Z_]+): ");

  private SparkErrors() {}

  /**
   * Creates an error of which Spark shows only the message. Its type is checked, but Spark's interfaces throw it
   * undeclared.
   */
  public static RuntimeException analysisException(String message) {
    return analysisException(message, null);
  }

  /**
   * Runs an action of a Python worker on the driver or in a task. An error of the connector is rethrown with its
   * one-line message, and Spark's error with the Python traceback as its cause.
   */
  public static <T> T unwrapPythonErrors(Callable<T> action) {
    try {
      return action.call();
    } catch (Exception error) { // Scala throws checked exceptions without declaring them
      String text = null;
      for (Throwable cause = error; cause != null && text == null; cause = cause.getCause()) {
        Matcher matcher = TYPED_ERROR.matcher(String.valueOf(cause.getMessage()));
        while (matcher.find()) text = matcher.group(1);
      }
      throw text == null ? SparkErrors.<RuntimeException>sneakyThrow(error) : analysisException(text, error);
    }
  }

  /**
   * Creates an error with the condition at the start of the message. With a condition, Spark shows the error of a task
   * instead of that of the job.
   */
  public static RuntimeException analysisException(String message, Throwable cause) {
    Matcher condition = CONDITION.matcher(message);
    AnalysisException error =
        new AnalysisException(
            message,
            Option.empty(),
            Option.empty(),
            Option.apply(cause),
            condition.find() ? Option.apply(condition.group(1)) : Option.empty(),
            scala.collection.immutable.Map$.MODULE$.empty(),
            new QueryContext[0]);
    return SparkErrors.<RuntimeException>sneakyThrow(error);
  }

  /** Creates the error for a file that is damaged or missing. */
  public static RuntimeException corruptData(String damage) {
    return analysisException("CORRUPT_DATA: " + damage + "; restore this file");
  }

  /** Returns whether an error of {@link #unwrapPythonErrors} has this condition. */
  public static boolean hasCondition(Throwable error, String condition) {
    return error instanceof AnalysisException analysisError && condition.equals(analysisError.getCondition());
  }

  /** Throws any exception without declaring it. */
  @SuppressWarnings("unchecked")
  public static <E extends Throwable> RuntimeException sneakyThrow(Throwable error) throws E {
    throw (E) error;
  }
}
