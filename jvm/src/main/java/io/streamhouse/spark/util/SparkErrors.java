package io.streamhouse.spark.util;

import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;

/** Errors as Spark shows them. */
public final class SparkErrors {
  private static final Pattern TYPED_ERROR = Pattern.compile("(?m)^streamhouse_spark\\.errors\\.\\w+: (.+)$");
  private static final Pattern CONDITION = Pattern.compile("^([A-Z][A-Z_]+): ");

  private SparkErrors() {}

  /** An error that Spark shows by its text alone. Declared as unchecked, because Spark's own methods throw it so. */
  public static RuntimeException analysisException(String message) {
    return analysisException(message, null);
  }

  /**
   * Runs an action of a Python worker, on the driver or in a task. The package's own errors show their text, in one
   * line; Spark's error, with the traceback, is the cause.
   */
  public static <T> T unwrapPythonErrors(Callable<T> action) {
    try {
      return action.call();
    } catch (Exception error) { // Scala throws checked ones without saying so
      String text = null;
      for (Throwable cause = error; cause != null && text == null; cause = cause.getCause()) {
        Matcher matcher = TYPED_ERROR.matcher(String.valueOf(cause.getMessage()));
        while (matcher.find()) text = matcher.group(1);
      }
      throw text == null ? SparkErrors.<RuntimeException>sneakyThrow(error) : analysisException(text, error);
    }
  }

  /** Sets the condition at the text's beginning: Spark then shows a task's error itself, and not the job's. */
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

  /** A file that is damaged or missing. */
  public static RuntimeException corruptData(String damage) {
    return analysisException("CORRUPT_DATA: " + damage + "; restore this file");
  }

  /** Whether an error of {@link #plainly} is of this condition. */
  public static boolean hasCondition(Throwable error, String condition) {
    return error instanceof AnalysisException analysisError && condition.equals(analysisError.getCondition());
  }

  /** Throws an error of any kind as it is. */
  @SuppressWarnings("unchecked")
  public static <E extends Throwable> RuntimeException sneakyThrow(Throwable error) throws E {
    throw (E) error;
  }
}
