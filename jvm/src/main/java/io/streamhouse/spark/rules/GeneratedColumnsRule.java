package io.streamhouse.spark.rules;

import io.streamhouse.spark.catalog.TableDefinitionJson;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.write.WritableTable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.UpdateAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateStarAction;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.NullType$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Sets generated columns that UPDATE and MERGE do not set to null, so that Python computes them for the new rows.
 * Rejects assignments to columns that are GENERATED ALWAYS AS IDENTITY.
 *
 *
 * <p>Spark would write the value of the old row, which may be outdated. It rewrites the statement as soon as columns
 * are resolved, so this rule runs before that.
 */
public final class GeneratedColumnsRule extends Rule<LogicalPlan> {
  private final SparkSession session;

  public GeneratedColumnsRule(SparkSession session) {
    this.session = session;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    LogicalPlan target = null;
    if (plan instanceof UpdateTable) target = ((UpdateTable) plan).table();
    if (plan instanceof MergeIntoTable) target = ((MergeIntoTable) plan).targetTable();
    if (target == null) return plan;
    Map<String, String> properties = tableProperties(target.collectLeaves().head());
    Set<String> generated = namesWithPrefix(properties, TableDefinitionJson.GENERATED_PREFIX);
    for (String name : namesWithPrefix(properties, TableDefinitionJson.IDENTITY_PREFIX)) {
      String text = properties.get(TableDefinitionJson.IDENTITY_PREFIX + name).trim().toUpperCase(Locale.ROOT);
      if (text.startsWith("ALWAYS")) rejectIdentityAssignment(plan, name);
    }
    return generated.isEmpty() ? plan : (LogicalPlan) withNullAssignments(plan, generated);
  }

  private Map<String, String> tableProperties(LogicalPlan leaf) {
    UnresolvedTableName tableName =
        leaf instanceof UnresolvedRelation ? UnresolvedTableName.resolve(session, (UnresolvedRelation) leaf) : null;
    Object table = tableName == null ? null : tableName.loadTable();
    return table instanceof WritableTable
        ? Json.toMap(((WritableTable) table).metadata.get("properties"))
        : Map.of();
  }

  /** Returns the rest of the property names that start with {@code prefix}. */
  private static Set<String> namesWithPrefix(Map<String, String> properties, String prefix) {
    Set<String> names = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
    for (String name : properties.keySet()) {
      if (name.startsWith(prefix)) names.add(name.substring(prefix.length()));
    }
    return names;
  }

  /** Throws if the statement or one of its actions assigns the column in existing rows. */
  private static void rejectIdentityAssignment(TreeNode<?> node, String name) {
    for (Object part : CollectionConverters.asJava(node.productIterator().toSeq())) {
      if (!(part instanceof Seq)) continue;
      for (Object item : CollectionConverters.asJava((Seq<Object>) part)) {
        if (item instanceof UpdateAction) rejectIdentityAssignment((UpdateAction) item, name);
        boolean sets = item instanceof Assignment && name.equalsIgnoreCase(assignedColumn((Assignment) item));
        if (sets || item instanceof UpdateStarAction) {
          throw SparkErrors.analysisException(
              "column " + name + " is GENERATED ALWAYS AS IDENTITY and cannot be set; omit it in "
                  + (sets ? "SET" : "the rows, and name the other columns instead of SET *"));
        }
      }
    }
  }

  /** Returns the name of the assigned column, or null if it is not a column. */
  private static String assignedColumn(Assignment assignment) {
    Expression key = assignment.key();
    if (key instanceof UnresolvedAttribute) {
      List<String> name = CollectionConverters.asJava(((UnresolvedAttribute) key).nameParts());
      return name.get(name.size() - 1);
    }
    return key instanceof NamedExpression ? ((NamedExpression) key).name() : null;
  }

  /** Returns the statement, or one of its actions, with an assignment for each of these columns. */
  private static Object withNullAssignments(TreeNode<?> node, Set<String> generated) {
    Object[] parts = CollectionConverters.asJava(node.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (!(parts[i] instanceof Seq)) continue;
      List<Object> items = new ArrayList<>(CollectionConverters.asJava((Seq<Object>) parts[i]));
      boolean areAssignments = !items.isEmpty() && items.stream().allMatch(Assignment.class::isInstance);
      if (areAssignments) addNullAssignments(items, generated);
      items.replaceAll(item -> item instanceof UpdateAction
          ? withNullAssignments((UpdateAction) item, generated)
          : item);
      parts[i] = CollectionConverters.asScala(items).toList();
    }
    return node.makeCopy(parts);
  }

  private static void addNullAssignments(List<Object> assignments, Set<String> generated) {
    Set<String> unassigned = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
    unassigned.addAll(generated);
    for (Object item : assignments) {
      String name = assignedColumn((Assignment) item);
      if (name != null) unassigned.remove(name);
    }
    for (String name : unassigned) {
      Seq<String> path = CollectionConverters.asScala(Arrays.asList(name)).toList();
      assignments.add(new Assignment(new UnresolvedAttribute(path), new Literal(null, NullType$.MODULE$)));
    }
  }
}
