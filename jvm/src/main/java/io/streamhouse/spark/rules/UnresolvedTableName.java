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

/** The name of a table in one of our catalogs, as a statement says it before Spark looks for the table. */
final class UnresolvedTableName {
  final PythonCatalog catalog;
  final Identifier identifier;

  private UnresolvedTableName(PythonCatalog catalog, Identifier identifier) {
    this.catalog = catalog;
    this.identifier = identifier;
  }

  /** The table of this name; null if the name is none of our catalogs'. */
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
    } catch (ReflectiveOperationException | RuntimeException error) { // Spark says it when it looks for the table
      return null;
    }
  }

  /** The type is a class in Spark 4.1 and an interface later, so a compiled call would fit one of them alone. */
  private static Object invoke(
      CatalogManager manager, String method, String... name) throws ReflectiveOperationException {
    return name.length == 0
        ? CatalogManager.class.getMethod(method).invoke(manager)
        : CatalogManager.class.getMethod(method, String.class).invoke(manager, name[0]);
  }

  /** The table; null if there is none, which Spark says when it looks for it. */
  Table loadTable() {
    try {
      return catalog.loadTable(identifier);
    } catch (NoSuchTableException error) {
      return null;
    }
  }
}
