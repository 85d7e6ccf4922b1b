package io.streamhouse.spark.rpc;

import java.nio.charset.StandardCharsets;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;

/**
 * The data source by the name of its Python class. Spark would look for all sources first, with a daemon and a worker
 * that do nothing else.
 */
public final class StreamhouseSource extends PythonDataSourceV2 {
  private static final String MODULE = "pyspark_streamhouse";

  /** Python's pickle of a class is its module and its name. */
  private static final String PICKLE = "c" + MODULE + "\nDefaultSource\n.";

  private static final UserDefinedPythonDataSource SOURCE =
      new UserDefinedPythonDataSource(
          PythonUtils$.MODULE$.createPythonFunction(PICKLE.getBytes(StandardCharsets.US_ASCII)));

  @Override
  public UserDefinedPythonDataSource source() {
    return SOURCE;
  }

  /** Whether a table is one of this source, by whichever way Spark found it. */
  public static boolean isTable(Object table) {
    return table instanceof PythonTable && ((PythonTable) table).name().equalsIgnoreCase(PythonRpc.SOURCE_NAME);
  }

  /** Whether there is no such class, or no Python. */
  static boolean isMissingModule(Throwable error) {
    return error instanceof LinkageError
        || String.valueOf(error.getMessage()).contains("No module named '" + MODULE + "'");
  }
}
