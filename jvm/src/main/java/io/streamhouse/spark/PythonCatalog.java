package io.streamhouse.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.types.StructType;

/** The catalog as its tables and the rules of a session use it: they are compiled before the catalog itself. */
interface PythonCatalog extends TableCatalog {
  /** The calls of Python with the catalog's settings. */
  PythonCalls python();

  /** Adds the columns of rows that the table lacks. Of a table that is not there Spark tells when it looks for it. */
  void mergeColumns(Identifier identifier, StructType rows);

  /** The name of a table as Python takes it. */
  static ObjectNode named(Identifier identifier) {
    return JsonTree.object()
        .put("database", String.join(".", identifier.namespace()))
        .put("table", identifier.name());
  }
}
