package io.streamhouse.spark;

import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import scala.Option;

/** Errors as Spark shows them. */
final class Errors {
  private static final Pattern TYPED = Pattern.compile("(?m)^streamhouse_spark\\.errors\\.\\w+: (.+)$");
  private static final Pattern CONDITION = Pattern.compile("^([A-Z][A-Z_]+): ");

  private Errors() {}

  /** An error that Spark shows by its text alone. Declared as unchecked, because Spark's own methods throw it so. */
  static RuntimeException analysis(String message) {
    return analysis(message, null);
  }

  /**
   * Runs an action of a Python worker, on the driver or in a task. The package's own errors show their text, in one
   * line; Spark's error, with the traceback, is the cause.
   */
  static <T> T plainly(Callable<T> action) {
    try {
      return action.call();
    } catch (Exception error) { // Scala throws checked ones without saying so
      String text = null;
      for (Throwable cause = error; cause != null && text == null; cause = cause.getCause()) {
        Matcher found = TYPED.matcher(String.valueOf(cause.getMessage()));
        while (found.find()) text = found.group(1);
      }
      throw text == null ? Errors.<RuntimeException>unchecked(error) : analysis(text, error);
    }
  }

  /** Sets the condition at the text's beginning: Spark then shows a task's error itself, and not the job's. */
  static RuntimeException analysis(String message, Throwable cause) {
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
    return Errors.<RuntimeException>unchecked(error);
  }

  /** A file that is damaged or missing. */
  static RuntimeException corrupt(String what) {
    return analysis("CORRUPT_DATA: " + what + "; restore this file");
  }

  /** Whether an error of {@link #plainly} is of this condition. */
  static boolean isOf(Throwable error, String condition) {
    return error instanceof AnalysisException found && condition.equals(found.getCondition());
  }

  /** Throws an error of any kind as it is. */
  @SuppressWarnings("unchecked")
  static <E extends Throwable> RuntimeException unchecked(Throwable error) throws E {
    throw (E) error;
  }
}
