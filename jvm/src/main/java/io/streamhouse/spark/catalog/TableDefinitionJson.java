package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.IdentityColumnSpec;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Check;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;

/** Encodes the definition of a table that is to be created or replaced as JSON. */
public final class TableDefinitionJson {
  /** Prefix of the properties that hold CHECK constraints. */
  private static final String CONSTRAINT_PREFIX = "table.constraint.";

  /** Prefix of the properties that hold the expressions of generated columns. */
  public static final String GENERATED_PREFIX = "table.generated.";

  /** Prefix of the property that holds the identity column. */
  public static final String IDENTITY_PREFIX = "table.identity.";

  private TableDefinitionJson() {}

  /** Encodes a table as Spark describes it in CREATE TABLE or REPLACE TABLE. */
  public static ObjectNode of(Identifier identifier, TableInfo info) {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier);
    arguments.put("schema", info.schema().json()).put("time_zone", timeZone());
    arguments.put("as_select", callers().stream().anyMatch(call -> call.contains("AsSelectExec#")));
    ArrayNode transforms = arguments.putArray("partitioning");
    for (Transform transform : info.partitions()) transforms.add(TransformJson.of(transform));
    Map<String, String> properties = new HashMap<>(info.properties());
    // saveAsTable and toTable without format() pass Spark's default format, which the user did not request
    if (isWrittenByDataFrame()) properties.remove(TableCatalog.PROP_PROVIDER, SQLConf.get().defaultDataSourceName());
    for (Column column : info.columns()) {
      if (column.generationExpression() != null) {
        properties.put(GENERATED_PREFIX + column.name(), column.generationExpression());
      }
      if (column.identityColumnSpec() != null) {
        properties.put(IDENTITY_PREFIX + column.name(), identityClause(column.identityColumnSpec()));
      }
    }
    ArrayNode key = arguments.putArray("primary_key");
    for (Constraint constraint : info.constraints()) {
      if (constraint instanceof Check && constraint.enforced()) {
        properties.put(CONSTRAINT_PREFIX + constraint.name(), ((Check) constraint).predicateSql());
        continue;
      }
      if (!(constraint instanceof PrimaryKey)) {
        throw SparkErrors.analysisException("constraint " + constraint.toDDL() + " is not supported; omit it");
      }
      for (NamedReference column : ((PrimaryKey) constraint).columns()) {
        key.add(String.join(".", column.fieldNames()));
      }
    }
    arguments.set("properties", Json.object(properties));
    return arguments;
  }

  private static String identityClause(IdentityColumnSpec spec) {
    String kind = spec.isAllowExplicitInsert() ? "BY DEFAULT" : "ALWAYS";
    return kind + " START WITH " + spec.getStart() + " INCREMENT BY " + spec.getStep();
  }

  /** Returns the time zone of timestamps without one, such as in a default value. */
  public static String timeZone() {
    return SQLConf.get().sessionLocalTimeZone();
  }

  private static List<String> callers() {
    List<String> calls = new ArrayList<>();
    StackWalker.getInstance().forEach(frame -> calls.add(frame.getClassName() + "#" + frame.getMethodName()));
    return calls;
  }

  /**
   * Returns whether a DataFrame writes. In Spark Connect, the plan of a DataFrame runs later, so SQL is recognized by
   * its callers.
   */
  private static boolean isWrittenByDataFrame() {
    List<String> calls = callers();
    boolean connect = calls.stream().anyMatch(call -> call.contains(".SparkConnectPlanExecution#"));
    return connect
        ? calls.stream().noneMatch(call -> call.endsWith("#executeSQL"))
        : calls.stream().anyMatch(call -> call.contains(".DataFrameWriter#") || call.contains(".DataStreamWriter#"));
  }
}
