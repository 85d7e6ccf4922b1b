package io.streamhouse.spark.rpc;

import java.nio.charset.StandardCharsets;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;

/**
 * The connector's data source, addressed by its Python class. Spark would otherwise start a daemon and a worker only to
 * look up all data sources.
 */
public final class StreamhouseSource extends PythonDataSourceV2 {
  private static final String MODULE = "pyspark_streamhouse";

  /** The pickle of a Python class: its module and name. */
  private static final String PICKLE = "c" + MODULE + "\nDefaultSource\n.";

  private static final UserDefinedPythonDataSource SOURCE =
      new UserDefinedPythonDataSource(
          PythonUtils$.MODULE$.createPythonFunction(PICKLE.getBytes(StandardCharsets.US_ASCII)));

  @Override
  public UserDefinedPythonDataSource source() {
    return SOURCE;
  }

  /** Returns whether a table is one of this data source, however Spark found the source. */
  public static boolean isTable(Object table) {
    return table instanceof PythonTable && ((PythonTable) table).name().equalsIgnoreCase(PythonRpc.SOURCE_NAME);
  }

  /** Returns whether an error means that the Python module, or Python itself, is missing. */
  static boolean isMissingModule(Throwable error) {
    return error instanceof LinkageError
        || String.valueOf(error.getMessage()).contains("No module named '" + MODULE + "'");
  }
}
