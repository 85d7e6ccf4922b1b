package io.streamhouse.spark.metrics;

import java.util.Iterator;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.sql.catalyst.InternalRow;

/** Rows on their way to Python, counted by the thread that sends them. */
public final class CountingIterator implements Iterator<InternalRow> {
  private final Iterator<InternalRow> rows;
  private final AtomicLong count;

  public CountingIterator(Iterator<InternalRow> rows, AtomicLong count) {
    this.rows = rows;
    this.count = count;
  }

  @Override
  public boolean hasNext() {
    return rows.hasNext();
  }

  @Override
  public InternalRow next() {
    count.incrementAndGet();
    return rows.next();
  }
}
