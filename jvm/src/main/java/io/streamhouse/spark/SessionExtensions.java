package io.streamhouse.spark;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.runtime.BoxedUnit;

/** Rules of every session that has the jar. Spark finds this class by the jar's list of services. */
public class SessionExtensions implements SparkSessionExtensionsProvider {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectOptimizerRule(session -> new SourceReads());
    return BoxedUnit.UNIT;
  }
}
