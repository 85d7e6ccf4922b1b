package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.types.StructType;

/** The catalog as its tables and the session's rules use it. It keeps them independent of the catalog class. */
public interface PythonCatalog extends TableCatalog {
  /** Returns the connection to Python, which has the catalog's settings. */
  PythonRpc python();

  /**
   * Adds the columns of {@code rows} that the table does not have. Does nothing if the table does not exist, which
   * Spark reports.
   */
  void mergeColumns(Identifier identifier, StructType rows);

  /** Returns the call arguments that name a table. */
  static ObjectNode nameArguments(Identifier identifier) {
    return Json.object()
        .put("database", String.join(".", identifier.namespace()))
        .put("table", identifier.name());
  }
}
