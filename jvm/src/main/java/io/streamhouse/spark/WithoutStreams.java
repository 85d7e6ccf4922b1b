package io.streamhouse.spark;

import java.util.AbstractSet;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;

/**
 * The capabilities of a table with a primary key: no stream of its rows, only one of their changes. Spark asks for that
 * one by name, only when it analyzes a stream. Its own error would say no more than that there is none.
 */
final class WithoutStreams extends AbstractSet<TableCapability> {
  private final WritableTable table;
  private final Set<TableCapability> others;

  WithoutStreams(WritableTable table, Set<TableCapability> all) {
    this.table = table;
    this.others = EnumSet.copyOf(all);
    others.remove(TableCapability.MICRO_BATCH_READ);
  }

  @Override
  public boolean contains(Object capability) {
    if (capability != TableCapability.MICRO_BATCH_READ) return others.contains(capability);
    String database = table.identifier.namespace()[0];
    throw Errors.analysis(
        "INVALID_OPTION: " + table.tableName() + " has a primary key, so that its log holds changes: a stream reads"
            + " them as " + table.catalog.name() + "." + database + ".`" + table.identifier.name() + "$changelog`; a"
            + " batch read gives the current rows");
  }

  @Override
  public Iterator<TableCapability> iterator() {
    return Collections.unmodifiableSet(others).iterator();
  }

  @Override
  public int size() {
    return others.size();
  }
}
