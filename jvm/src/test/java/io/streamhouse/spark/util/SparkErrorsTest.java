package io.streamhouse.spark.util;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.streamhouse.spark.rpc.MappedException;
import io.streamhouse.spark.rpc.PythonRpc;
import java.io.IOException;
import java.util.concurrent.Callable;
import org.apache.spark.sql.AnalysisException;
import org.junit.jupiter.api.Test;

class SparkErrorsTest {
  private static final String TRACEBACK =
      "[PYTHON_DATA_SOURCE_ERROR] Failed to commit\n"
          + "Traceback (most recent call last):\n"
          + "  File \"/a.py\", line 1, in f\n"
          + "streamhouse_spark.errors.StorageError: STORAGE_UNAVAILABLE: the first\n\n"
          + "During handling of the above exception, another exception occurred:\n\n"
          + "Traceback (most recent call last):\n"
          + "streamhouse_spark.errors.CommitConflictError: COMMIT_CONFLICT: sales.orders: changed; run it again\n";

  private static Throwable thrown(Callable<Object> action) {
    return assertThrows(Exception.class, () -> SparkErrors.unwrapPythonErrors(action));
  }

  private static Exception failing(Exception error, Throwable cause) {
    error.initCause(cause);
    return error;
  }

  @Test
  void theMessageIsTheLastTypedLineOfATraceback() {
    Exception error = new RuntimeException(TRACEBACK);
    AnalysisException shown = (AnalysisException) thrown(() -> { throw error; });
    assertEquals("COMMIT_CONFLICT: sales.orders: changed; run it again", shown.getMessage());
    assertEquals("COMMIT_CONFLICT", shown.getCondition());
    assertSame(error, shown.getCause());
  }

  @Test
  void theMessageIsFoundInCauses() {
    Exception inner = new RuntimeException(TRACEBACK);
    Exception outer = failing(new IllegalStateException((String) null), failing(new IOException("task failed"), inner));
    assertEquals("COMMIT_CONFLICT", ((AnalysisException) thrown(() -> { throw outer; })).getCondition());
  }

  @Test
  void otherErrorsAreRethrown() {
    Exception checked = new IOException("ValueError: streamhouse_spark.errors.StorageError: not at a line's start");
    assertSame(checked, thrown(() -> { throw checked; }));
    Exception similar = new RuntimeException("Traceback\nstreamhouse_spark.errors_of.Other: no\npyspark.errors.X: no");
    assertSame(similar, thrown(() -> { throw similar; }));
  }

  @Test
  void aMessageWithoutAConditionHasNone() {
    AnalysisException error =
        assertThrows(AnalysisException.class, () -> { throw SparkErrors.analysisException("Sorry: no"); });
    assertEquals("Sorry: no", error.getMessage());
    assertNull(error.getCondition());
  }

  @Test
  void resultsAreReturned() {
    assertEquals("done", SparkErrors.unwrapPythonErrors(() -> "done"));
  }

  @Test
  void aReplyIsAValueOrAnError() {
    assertEquals(1, PythonRpc.parseReply("{\"ok\":{\"a\":1}}").get("a").asInt());
    String refusal = "{\"error\":{\"class\":\"X\",\"condition\":\"TABLE_EXISTS\",\"message\":\"TABLE_EXISTS: t\"}}";
    MappedException refused =
        assertThrows(MappedException.class, () -> PythonRpc.parseReply(refusal, "OTHER", "TABLE_EXISTS"));
    assertEquals(true, refused.hasCondition("TABLE_EXISTS"));
    AnalysisException error = assertThrows(AnalysisException.class, () -> PythonRpc.parseReply(refusal, "OTHER"));
    assertEquals("TABLE_EXISTS", error.getCondition());
    assertThrows(IllegalStateException.class, () -> PythonRpc.parseReply("no JSON"));
  }
}
