package io.streamhouse.spark.rules;

import io.streamhouse.spark.catalog.PythonCatalog;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.connector.catalog.CatalogManager;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import scala.jdk.javaapi.CollectionConverters;

/** The name of a table in a catalog of the connector, before Spark resolves it. */
final class UnresolvedTableName {
  final PythonCatalog catalog;
  final Identifier identifier;

  private UnresolvedTableName(PythonCatalog catalog, Identifier identifier) {
    this.catalog = catalog;
    this.identifier = identifier;
  }

  /** Resolves the name, or returns null if its catalog is not one of the connector. */
  static UnresolvedTableName resolve(SparkSession session, UnresolvedRelation relation) {
    List<String> parts = new ArrayList<>(CollectionConverters.asJava(relation.multipartIdentifier()));
    CatalogManager manager = session.sessionState().catalogManager();
    try {
      Object catalog = invoke(manager, "currentCatalog");
      if ((Boolean) invoke(manager, "isCatalogRegistered", parts.get(0))) {
        catalog = invoke(manager, "catalog", parts.remove(0));
      }
      if (!(catalog instanceof PythonCatalog) || parts.isEmpty()) return null;
      String[] namespace = (String[]) invoke(manager, "currentNamespace");
      String name = parts.remove(parts.size() - 1);
      if (!parts.isEmpty()) namespace = parts.toArray(new String[0]);
      return new UnresolvedTableName((PythonCatalog) catalog, Identifier.of(namespace, name));
    } catch (ReflectiveOperationException | RuntimeException error) { // Spark reports it when it resolves the table
      return null;
    }
  }

  /**
   * Calls by reflection, because the type is a class in Spark 4.1 and an interface later, which need different
   * bytecode.
   */
  private static Object invoke(
      CatalogManager manager, String method, String... name) throws ReflectiveOperationException {
    return name.length == 0
        ? CatalogManager.class.getMethod(method).invoke(manager)
        : CatalogManager.class.getMethod(method, String.class).invoke(manager, name[0]);
  }

  /** Loads the table, or returns null if there is none, which Spark reports when it resolves the name. */
  Table loadTable() {
    try {
      return catalog.loadTable(identifier);
    } catch (NoSuchTableException error) {
      return null;
    }
  }
}
