package io.streamhouse.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
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
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.NullType$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Sets generated columns that UPDATE and MERGE do not set to null, so that Python computes them for the new rows.
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
    Set<String> generated = generated(target.collectLeaves().head());
    return generated.isEmpty() ? plan : (LogicalPlan) setting(plan, generated);
  }

  private Set<String> generated(LogicalPlan leaf) {
    Set<String> found = new TreeSet<>(String.CASE_INSENSITIVE_ORDER);
    NamedTable named =
        leaf instanceof UnresolvedRelation ? NamedTable.of(session, (UnresolvedRelation) leaf) : null;
    Object table = named == null ? null : named.load();
    if (!(table instanceof WritableTable)) return found;
    for (String name : JsonTree.texts(((WritableTable) table).loaded.get("properties")).keySet()) {
      if (name.startsWith(TableDescription.GENERATED)) found.add(name.substring(TableDescription.GENERATED.length()));
    }
    return found;
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
      Expression key = ((Assignment) item).key();
      if (key instanceof UnresolvedAttribute) {
        List<String> name = CollectionConverters.asJava(((UnresolvedAttribute) key).nameParts());
        missing.remove(name.get(name.size() - 1));
      } else if (key instanceof NamedExpression) {
        missing.remove(((NamedExpression) key).name());
      }
    }
    for (String name : missing) {
      Seq<String> path = CollectionConverters.asScala(Arrays.asList(name)).toList();
      assignments.add(new Assignment(new UnresolvedAttribute(path), new Literal(null, NullType$.MODULE$)));
    }
  }
}
