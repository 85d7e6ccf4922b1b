package io.streamhouse.spark;

import java.util.function.Supplier;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.types.StructType;

/** The changes of an operation on rows. */
class KeyedDeltaWrite implements DeltaWrite {
  final WritableTable table;
  private final Write shown;
  private final Supplier<Write> inner;
  private final StructType written;

  /** Makes the writer when the statement runs, because it needs the statement's other reads; another one is shown. */
  KeyedDeltaWrite(WritableTable table, Write shown, Supplier<Write> inner, StructType written) {
    this.table = table;
    this.shown = shown;
    this.inner = inner;
    this.written = written;
  }

  @Override
  public String description() {
    return shown.description();
  }

  @Override
  public DeltaBatchWrite toBatch() {
    return new KeyedDeltaBatchWrite(new PlainBatchWrite(inner.get().toBatch()), written, table.schema.length());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return shown.supportedCustomMetrics();
  }
}
