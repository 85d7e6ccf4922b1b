package io.streamhouse.spark;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** Gives streams of {@code format("streamhouse")} a table whose batches {@link StreamPruning} can narrow. */
final class SourceStreams extends Rule<LogicalPlan> {
  @Override
  public LogicalPlan apply(LogicalPlan plan) {
    if (!SourceReads.isOn()) return plan;
    return plan.resolveOperatorsUp(
        new AbstractPartialFunction<LogicalPlan, LogicalPlan>() {
          @Override
          public boolean isDefinedAt(LogicalPlan node) {
            return node instanceof StreamingRelationV2 && OwnSource.isTable(((StreamingRelationV2) node).table());
          }

          @Override
          public LogicalPlan apply(LogicalPlan node) {
            return replaced((StreamingRelationV2) node);
          }
        });
  }

  private static LogicalPlan replaced(StreamingRelationV2 node) {
    Object[] parts = CollectionConverters.asJava(node.productIterator().toSeq()).toArray();
    for (int i = 0; i < parts.length; i++) {
      if (parts[i] == node.table()) parts[i] = new StreamedRows((PythonTable) node.table());
    }
    return (LogicalPlan) node.makeCopy(parts);
  }
}
