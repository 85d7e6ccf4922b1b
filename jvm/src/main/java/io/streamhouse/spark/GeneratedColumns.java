package io.streamhouse.spark;

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
 * Sets generated columns that UPDATE and MERGE do not set to null, so that Python computes them for the new rows, and
 * refuses to set an identity column that the table alone gives its numbers.
 *
 * <p>Spark would write the value of the old row, which may not be that of the new one. When it has found the columns it
 * rewrites the statement at once, so this rule runs before it looks for them.
 */
final class GeneratedColumns extends Rule<LogicalPlan> {
  private final SparkSession session;

  GeneratedColumns(SparkSession session) {
    this.session = session;
  }

  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    LogicalPlan target = null;
    if (plan instanceof UpdateTable) target = ((UpdateTable) plan).table();
    if (plan instanceof MergeIntoTable) target = ((MergeIntoTable) plan).targetTable();
    if (target == null) return plan;
    Map<String, String> properties = properties(target.collectLeaves().head());
    Set<String> generated = names(properties, TableDescription.GENERATED);
    for (String name : names(properties, TableDescription.IDENTITY)) {
      String text = properties.get(TableDescription.IDENTITY + name).trim().toUpperCase(Locale.ROOT);
      if (text.startsWith("ALWAYS")) refuseSetting(plan, name);
    }
    return generated.isEmpty() ? plan : (LogicalPlan) setting(plan, generated);
  }

  private Map<String, String> properties(LogicalPlan leaf) {
    NamedTable named =
        leaf instanceof UnresolvedRelation ? NamedTable.of(session, (UnresolvedRelation) leaf) : null;
    Object table = named == null ? null : named.load();
    return table instanceof WritableTable
        ? JsonTree.texts(((WritableTable) table).loaded.get("properties"))
        : Map.of();
  }

  /** The rest of the names that begin so. */
  private static Set<String> names(Map<String, String> properties, String beginning) {
    Set<String> found = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
    for (String name : properties.keySet()) {
      if (name.startsWith(beginning)) found.add(name.substring(beginning.length()));
    }
    return found;
  }

  /** Throws if the statement, or one of its actions, sets the column in rows that are there. */
  private static void refuseSetting(TreeNode<?> node, String name) {
    for (Object part : CollectionConverters.asJava(node.productIterator().toSeq())) {
      if (!(part instanceof Seq)) continue;
      for (Object item : CollectionConverters.asJava((Seq<Object>) part)) {
        if (item instanceof UpdateAction) refuseSetting((UpdateAction) item, name);
        boolean sets = item instanceof Assignment && name.equalsIgnoreCase(column((Assignment) item));
        if (sets || item instanceof UpdateStarAction) {
          throw Errors.analysis(
              "column " + name + " is GENERATED ALWAYS AS IDENTITY: a row keeps its number; leave the column out of "
                  + (sets ? "SET" : "the rows, and name the others in place of SET *"));
        }
      }
    }
  }

  /** The name of the column that is set; null where it is none. */
  private static String column(Assignment assignment) {
    Expression key = assignment.key();
    if (key instanceof UnresolvedAttribute) {
      List<String> name = CollectionConverters.asJava(((UnresolvedAttribute) key).nameParts());
      return name.get(name.size() - 1);
    }
    return key instanceof NamedExpression ? ((NamedExpression) key).name() : null;
  }

  /** The statement, or one of its actions, whose assignments set all of these columns. */
  private static Object setting(TreeNode<?> node, Set<String> generated) {
    Object[] parts = CollectionConverters.asJava(node.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (!(parts[i] instanceof Seq)) continue;
      List<Object> items = new ArrayList<>(CollectionConverters.asJava((Seq<Object>) parts[i]));
      boolean ofAssignments = !items.isEmpty() && items.stream().allMatch(Assignment.class::isInstance);
      if (ofAssignments) add(items, generated);
      items.replaceAll(item -> item instanceof UpdateAction ? setting((UpdateAction) item, generated) : item);
      parts[i] = CollectionConverters.asScala(items).toList();
    }
    return node.makeCopy(parts);
  }

  private static void add(List<Object> assignments, Set<String> generated) {
    Set<String> missing = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
    missing.addAll(generated);
    for (Object item : assignments) {
      String name = column((Assignment) item);
      if (name != null) missing.remove(name);
    }
    for (String name : missing) {
      Seq<String> path = CollectionConverters.asScala(Arrays.asList(name)).toList();
      assignments.add(new Assignment(new UnresolvedAttribute(path), new Literal(null, NullType$.MODULE$)));
    }
  }
}
