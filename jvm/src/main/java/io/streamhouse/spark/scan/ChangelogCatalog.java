package io.streamhouse.spark.scan;

import io.streamhouse.spark.catalog.PythonCatalog;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Adds Spark's {@code CHANGES} queries to the catalog. Spark 4.1 lacks the types of the method and never calls it. */
public interface ChangelogCatalog extends PythonCatalog {
  @Override
  default Changelog loadChangelog(
      Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options) throws NoSuchTableException {
    return TableChangelog.load(this, identifier, context);
  }
}
