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

/**
 * Recognizes runs of Spark's declarative pipelines. They do not identify themselves to a catalog, so their classes are
 * looked up in the call stack.
 */
public final class PipelineRuns {
  private static final String GRAPH = "org.apache.spark.sql.pipelines.graph.";

  /** Versions whose runs write a materialized view with exactly one append, by {@code BatchTableWrite}. */
  private static final Set<String> SUPPORTED_VERSIONS = Set.of("4.1", "4.2", "4.3");

  private PipelineRuns() {}

  /** Returns whether a run is preparing its tables, that is comparing, creating, altering or truncating them. */
  public static boolean isPreparingTables() {
    return hasCaller("DatasetManager");
  }

  /** Returns the part of the partitioning that a run compares with the declared one, which has columns only. */
  static Transform[] columnPartitioning(Transform[] partitioning) {
    return Arrays.stream(partitioning).filter(part -> part.name().equals("identity")).toArray(Transform[]::new);
  }

  /** Returns whether a run is writing the rows of a materialized view, the only use of this class. */
  public static boolean isRefreshingView() {
    return hasCaller("BatchTableWrite") && isSupportedVersion();
  }

  private static boolean hasCaller(String name) {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().startsWith(GRAPH + name)));
  }

  /**
   * Returns whether a run truncates a materialized view whose new rows will replace the old ones in one commit. Until
   * that commit, readers see the old rows. If anything is uncertain, returns false.
   */
  public static boolean defersTruncate(String catalog, Identifier name) {
    try {
      return isPreparingTables() && isSupportedVersion() && isViewOfEachRun(SparkSession.active(), catalog, name);
    } catch (Exception | LinkageError e) {
      return false; // Spark throws exceptions that it does not declare
    }
  }

  private static boolean isSupportedVersion() {
    String version = package$.MODULE$.SPARK_VERSION();
    return SUPPORTED_VERSIONS.stream().anyMatch(supported -> version.startsWith(supported + "."));
  }

  /** Returns whether runs of this session contain the table, each of them as a view. */
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
