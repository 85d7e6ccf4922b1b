package io.streamhouse.spark.read;

import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

/** Reads the rows of Arrow batches one by one, for plans that are not columnar. */
final class PythonRowReader implements PartitionReader<InternalRow> {
  private final PythonBatchReader batches;
  private Iterator<InternalRow> rows = Collections.emptyIterator();

  PythonRowReader(PythonBatchReader batches) {
    this.batches = batches;
  }

  @Override
  public boolean next() throws IOException {
    while (!rows.hasNext()) {
      if (!batches.next()) return false;
      rows = batches.get().rowIterator();
    }
    return true;
  }

  @Override
  public InternalRow get() {
    return rows.next();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    return batches.currentMetricsValues();
  }

  @Override
  public void initMetricsValues(CustomTaskMetric[] before) {
    batches.initMetricsValues(before);
  }

  @Override
  public void close() throws IOException {
    batches.close();
  }
}
