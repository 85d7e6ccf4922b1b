package org.apache.spark.sql.pipelines.graph;

import java.util.concurrent.Callable;

/** Calls code like a pipeline run that prepares its tables. */
public final class DatasetManagerOfTests {
  private DatasetManagerOfTests() {}

  public static <T> T call(Callable<T> work) throws Exception {
    return work.call();
  }
}
