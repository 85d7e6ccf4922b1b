package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Changelog;
import org.apache.spark.sql.connector.catalog.ChangelogContext;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The changes of tables, for Spark from 4.2 on. 4.1 lacks the types of the method, which nobody calls there. */
interface ChangesCatalog extends PythonCatalog {
  @Override
  default Changelog loadChangelog(
      Identifier identifier, ChangelogContext context, CaseInsensitiveStringMap options) throws NoSuchTableException {
    return TableChanges.load(this, identifier, context);
  }
}
