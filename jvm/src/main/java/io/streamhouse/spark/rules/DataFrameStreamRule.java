package io.streamhouse.spark.rules;

import io.streamhouse.spark.rpc.StreamhouseSource;
import io.streamhouse.spark.stream.StreamReadTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Analyzer rule that gives streams of {@code format("streamhouse")} a table whose batches {@link StreamPushdownRule}
 * can prune.
 */
public final class DataFrameStreamRule extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (!DataFrameReadRule.isEnabled()) return plan;
    return plan.resolveOperatorsUp(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof StreamingRelationV2
                && StreamhouseSource.isTable(((StreamingRelationV2) node).table());
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            return replaceTable((StreamingRelationV2) node);
          }
        });
  }

  private static LogicalPlan replaceTable(StreamingRelationV2 node) {
    Object[] parts = CollectionConverters.asJava(node.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (parts[i] == node.table()) parts[i] = new StreamReadTable((PythonTable) node.table());
    }
    return (LogicalPlan) node.makeCopy(parts);
  }
}
