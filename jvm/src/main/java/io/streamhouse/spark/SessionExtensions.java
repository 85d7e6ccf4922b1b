package io.streamhouse.spark;

import java.util.Map;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.Tuple2;
import scala.runtime.BoxedUnit;

/** Rules of every session that has the jar. Spark finds this class by the jar's list of services. */
public class SessionExtensions implements SparkSessionExtensionsProvider {
  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    // Before Spark looks for columns:
    extensions.injectHintResolutionRule(MergedColumns::new);
    extensions.injectHintResolutionRule(GeneratedColumns::new);
    extensions.injectOptimizerRule(session -> new SourceReads());
    begin(SparkEnv.get().conf());
    return BoxedUnit.UNIT;
  }

  /** The first query finds the planner worker there. */
  private static void begin(SparkConf conf) {
    for (Tuple2<String, String> entry : conf.getAll()) {
      if (entry._2().equals(StreamhouseCatalog.class.getName())) {
        new PythonCalls(Map.of("warehouse", conf.get(entry._1() + ".warehouse", ""))).begin();
        return;
      }
    }
  }
}
