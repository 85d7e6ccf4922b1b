package io.streamhouse.spark;

import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.rules.DataFrameReadRule;
import io.streamhouse.spark.rules.DataFrameStreamRule;
import io.streamhouse.spark.rules.GeneratedColumnsRule;
import io.streamhouse.spark.rules.MergeSchemaRule;
import io.streamhouse.spark.rules.StreamPushdownRule;
import java.util.Map;
import java.util.Set;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.Tuple2;
import scala.runtime.BoxedUnit;

/**
 * Adds the connector's rules to every session whose class path has the jar. Spark loads this class through {@code
 * META-INF/services}.
 */
public class SessionExtensions implements SparkSessionExtensionsProvider {
  /** Compared by name, because Spark 4.1 cannot load the view catalog. */
  private static final Set<String> CATALOGS =
      Set.of("io.streamhouse.spark.StreamhouseCatalog", "io.streamhouse.spark.StreamhouseViewCatalog");

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    // These rules must run before Spark resolves columns.
    extensions.injectHintResolutionRule(MergeSchemaRule::new);
    extensions.injectHintResolutionRule(GeneratedColumnsRule::new);
    extensions.injectOptimizerRule(session -> new DataFrameReadRule(StreamhouseCatalog::new));
    extensions.injectPostHocResolutionRule(session -> new DataFrameStreamRule());
    extensions.injectPreCBORule(session -> new StreamPushdownRule());
    warmUp(SparkEnv.get().conf());
    return BoxedUnit.UNIT;
  }

  /** Starts the planner worker early if a catalog is configured, so that the first query does not wait for it. */
  private static void warmUp(SparkConf conf) {
    for (Tuple2<String, String> entry : conf.getAll()) {
      if (CATALOGS.contains(entry._2())) {
        new PythonRpc(Map.of("warehouse", conf.get(entry._1() + ".warehouse", ""))).warmUp();
        return;
      }
    }
  }
}
