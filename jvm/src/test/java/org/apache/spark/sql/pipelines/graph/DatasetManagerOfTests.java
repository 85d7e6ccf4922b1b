package org.apache.spark.sql.pipelines.graph;

import java.util.concurrent.Callable;

/** Calls as a run of a pipeline does while it prepares its tables. */
public final class DatasetManagerOfTests {
  private DatasetManagerOfTests() {}

  public static <T> T call(Callable<T> work) throws Exception {
    return work.call();
  }
}
