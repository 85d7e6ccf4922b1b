package io.streamhouse.spark.catalog;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.package$;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.Transform;
import scala.collection.Iterable;
import scala.jdk.javaapi.CollectionConverters;

/** Runs of Spark's declarative pipelines. They tell a catalog nothing of themselves, and are known by their classes. */
public final class PipelineRuns {
  private static final String GRAPH = "org.apache.spark.sql.pipelines.graph.";

  /** Versions in which all that a run writes into a materialized view is one append by {@code BatchTableWrite}. */
  private static final Set<String> SUPPORTED_VERSIONS = Set.of("4.1", "4.2", "4.3");

  private PipelineRuns() {}

  /** Whether a run prepares its tables. It compares, creates, changes and truncates them so. */
  public static boolean isPreparingTables() {
    return hasCaller("DatasetManager");
  }

  /** The partitioning that a run compares with the one that is declared, which is of columns alone. */
  static Transform[] columnPartitioning(Transform[] partitioning) {
    return Arrays.stream(partitioning).filter(part -> part.name().equals("identity")).toArray(Transform[]::new);
  }

  /** Whether a run writes the rows of a materialized view: it has no other use of this class. */
  public static boolean isRefreshingView() {
    return hasCaller("BatchTableWrite") && isSupportedVersion();
  }

  private static boolean hasCaller(String name) {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().startsWith(GRAPH + name)));
  }

  /**
   * Whether a run truncates a materialized view, whose new rows will replace the old ones in one commit: until then
   * readers see the old ones. Where anything about it is not certain the answer is no.
   */
  public static boolean defersTruncate(String catalog, Identifier name) {
    try {
      return isPreparingTables() && isSupportedVersion() && isViewOfEachRun(SparkSession.active(), catalog, name);
    } catch (Exception | LinkageError e) {
      return false; // Spark throws more than it declares
    }
  }

  private static boolean isSupportedVersion() {
    String version = package$.MODULE$.SPARK_VERSION();
    return SUPPORTED_VERSIONS.stream().anyMatch(supported -> version.startsWith(supported + "."));
  }

  /** Whether runs of this session have the table, and each of them as a view. */
  private static boolean isViewOfEachRun(SparkSession session, String catalog, Identifier name)
      throws ReflectiveOperationException {
    boolean isView = false;
    Class<?> service = Class.forName("org.apache.spark.sql.connect.service.SparkConnectService$");
    Object manager = invoke(service.getField("MODULE$").get(null), "sessionManager");
    Field store = manager.getClass().getDeclaredField("sessionStore");
    store.setAccessible(true);
    for (Object holder : ((Map<?, ?>) store.get(manager)).values()) {
      for (Object run : ((Map<?, ?>) invoke(holder, "pipelineExecutions")).values()) {
        if (invoke(run, "spark") != session) continue;
        for (Object table : CollectionConverters.asJava(
            (Iterable<?>) invoke(invoke(run, "unresolvedGraph"), "tables"))) {
          if (!matches((TableIdentifier) invoke(table, "identifier"), catalog, name)) continue;
          if ((boolean) invoke(table, "isStreamingTable")) return false;
          isView = true;
        }
      }
    }
    return isView;
  }

  private static Object invoke(Object target, String method) throws ReflectiveOperationException {
    Method accessor = findMethod(target.getClass(), method);
    accessor.setAccessible(true);
    return accessor.invoke(target);
  }

  private static Method findMethod(Class<?> type, String name) throws NoSuchMethodException {
    try {
      return type.getMethod(name);
    } catch (NoSuchMethodException e) {
      return type.getDeclaredMethod(name);
    }
  }

  private static boolean matches(TableIdentifier table, String catalog, Identifier name) {
    return table.catalog().contains(catalog)
        && table.database().contains(String.join(".", name.namespace()))
        && table.table().equals(name.name());
  }
}
