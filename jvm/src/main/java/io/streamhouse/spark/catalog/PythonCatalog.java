package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.types.StructType;

/** The catalog as its tables and the rules of a session use it: they are compiled before the catalog itself. */
public interface PythonCatalog extends TableCatalog {
  /** The calls of Python with the catalog's settings. */
  PythonRpc python();

  /** Adds the columns of rows that the table lacks. Of a table that is not there Spark tells when it looks for it. */
  void mergeColumns(Identifier identifier, StructType rows);

  /** The name of a table as Python takes it. */
  static ObjectNode nameArguments(Identifier identifier) {
    return Json.object()
        .put("database", String.join(".", identifier.namespace()))
        .put("table", identifier.name());
  }
}
