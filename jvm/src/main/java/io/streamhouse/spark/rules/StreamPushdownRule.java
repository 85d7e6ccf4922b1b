package io.streamhouse.spark.rules;

import io.streamhouse.spark.realtime.RealTimeStream;
import io.streamhouse.spark.stream.PushdownStream;
import io.streamhouse.spark.stream.UnprunedStream;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.planning.PhysicalOperation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.connector.expressions.filter.And;
import org.apache.spark.sql.connector.expressions.filter.Or;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.execution.datasources.DataSourceStrategy$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy$;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Pushes columns and filters down to each batch of a stream.
 *
 *
 * <p>Spark does not, because it builds the scan of a stream before it optimizes the plan. This rule runs on the plan of
 * each batch, after filters and projections were pushed down. Filters stay in the plan. If a query uses a stream
 * several times, each use reads what all of them need. So Spark's row counts of the stream stay right, and scans that
 * are equal to Spark read the same.
 */
public final class StreamPushdownRule extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    Map<UnprunedStream, Requirement> requirements = new IdentityHashMap<>();
    if (DataFrameReadRule.isEnabled()) collectRequirements(plan, requirements);
    if (requirements.isEmpty()) return plan;
    return plan.transformUp(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return batchStream(node) != null;
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            return requirements.get(batchStream(node)).pushDown((StreamingDataSourceV2ScanRelation) node);
          }
        });
  }

  /** Returns the stream of a batch's scan, or null for another node. */
  private static UnprunedStream batchStream(LogicalPlan node) {
    if (!(node instanceof StreamingDataSourceV2ScanRelation)) return null;
    StreamingDataSourceV2ScanRelation scan = (StreamingDataSourceV2ScanRelation) node;
    boolean isRealTime = scan.stream() instanceof RealTimeStream; // its batches have no end
    boolean isBatch = scan.startOffset().isDefined() && (isRealTime || scan.endOffset().isDefined());
    return isBatch && scan.stream() instanceof UnprunedStream ? (UnprunedStream) scan.stream() : null;
  }

  private static void collectRequirements(LogicalPlan plan, Map<UnprunedStream, Requirement> requirements) {
    Option<Tuple3<Seq<NamedExpression>, Seq<Expression>, LogicalPlan>> operation = PhysicalOperation.unapply(plan);
    UnprunedStream stream = operation.isDefined() ? batchStream(operation.get()._3()) : null;
    if (stream == null) {
      for (LogicalPlan child : CollectionConverters.asJava(plan.children())) collectRequirements(child, requirements);
      return;
    }
    StreamingDataSourceV2ScanRelation scan = (StreamingDataSourceV2ScanRelation) operation.get()._3();
    requirements.computeIfAbsent(stream, key ->
        new Requirement(stream)).add(scan, operation.get()._1(), operation.get()._2());
  }

  /** What all uses of a stream in a query need. */
  private static final class Requirement {
    private final UnprunedStream stream;
    private final BitSet columnOrdinals = new BitSet();

    /** The filters of each use. A use without filters needs all rows. */
    private final List<List<Predicate>> filters = new ArrayList<>();

    Requirement(UnprunedStream stream) {
      this.stream = stream;
    }

    void add(StreamingDataSourceV2ScanRelation scan, Seq<NamedExpression> fields, Seq<Expression> conditions) {
      List<Expression> used = new ArrayList<>();
      for (NamedExpression field : CollectionConverters.asJava(fields)) used.add((Expression) field);
      used.addAll(CollectionConverters.asJava(conditions));
      for (Expression expression : used) {
        List<AttributeReference> columns = CollectionConverters.asJava(scan.output());
        for (int i = 0; i < columns.size(); i++) {
          if (expression.references().contains(columns.get(i))) columnOrdinals.set(i);
        }
      }
      filters.add(translate(scan, conditions));
    }

    private static List<Predicate> translate(StreamingDataSourceV2ScanRelation scan, Seq<Expression> conditions) {
      List<Predicate> predicates = new ArrayList<>();
      List<Attribute> columns = new ArrayList<>(CollectionConverters.asJava(scan.output()));
      Seq<Expression> normalized =
          DataSourceStrategy$.MODULE$.normalizeExprs(conditions, DataFrameReadRule.toSeq(columns));
      for (Expression condition : CollectionConverters.asJava(normalized)) {
        Option<Predicate> predicate = DataSourceV2Strategy$.MODULE$.translateFilterV2(condition);
        if (predicate.isDefined()) predicates.add(predicate.get());
      }
      return predicates;
    }

    /** Returns the filters of the only use, or the disjunction of the filters of all uses. */
    private List<Predicate> combinedFilter() {
      if (filters.size() == 1) return filters.get(0);
      if (filters.contains(Collections.<Predicate>emptyList())) return List.of();
      return List.of(filters.stream().map(Requirement::conjunction).reduce(Or::new).get());
    }

    private static Predicate conjunction(List<Predicate> predicates) {
      return predicates.stream().reduce(And::new).get();
    }

    /** Returns the scan with the required columns and filters only. */
    LogicalPlan pushDown(StreamingDataSourceV2ScanRelation scan) {
      List<AttributeReference> output = new ArrayList<>();
      StructType required = new StructType();
      for (int i = columnOrdinals.nextSetBit(0); i >= 0; i = columnOrdinals.nextSetBit(i + 1)) {
        output.add(scan.output().apply(i));
        required = required.add(stream.schema().apply(i));
      }
      PushdownStream pruned = new PushdownStream(stream, required, combinedFilter());
      Object[] parts = CollectionConverters.asJava(scan.productIterator().toSeq()).toArray();
      for (int i = 0; i < parts.length; i++) {
        if (parts[i] == scan.scan() || parts[i] == scan.stream()) parts[i] = pruned;
        else if (parts[i] == scan.output()) parts[i] = DataFrameReadRule.toSeq(output);
      }
      return (LogicalPlan) scan.makeCopy(parts);
    }
  }
}
