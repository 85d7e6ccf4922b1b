package io.streamhouse.spark.write;

import io.streamhouse.spark.util.SparkErrors;
import java.util.AbstractSet;
import java.util.Collections;
import java.util.EnumSet;
import java.util.Iterator;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.TableCapability;

/**
 * The capabilities of a table with a primary key, which has a stream of changes and none of rows. Spark tests for the
 * stream capability only when it analyzes a stream. The error then names the changelog, which Spark's own error would
 * not.
 */
final class PrimaryKeyTableCapabilities extends AbstractSet<TableCapability> {
  private final WritableTable table;
  private final Set<TableCapability> capabilities;

  PrimaryKeyTableCapabilities(WritableTable table, Set<TableCapability> allCapabilities) {
    this.table = table;
    this.capabilities = EnumSet.copyOf(allCapabilities);
    capabilities.remove(TableCapability.MICRO_BATCH_READ);
  }

  @Override
  public boolean contains(Object capability) {
    if (capability != TableCapability.MICRO_BATCH_READ) return capabilities.contains(capability);
    String database = table.identifier.namespace()[0];
    throw SparkErrors.analysisException(
        "INVALID_OPTION: " + table.tableName() + " has a primary key, so its streams read changes; stream "
            + table.catalog.name() + "." + database + ".`" + table.identifier.name() + "$changelog`, or read the"
            + " current rows in a batch");
  }

  @Override
  public Iterator<TableCapability> iterator() {
    return Collections.unmodifiableSet(capabilities).iterator();
  }

  @Override
  public int size() {
    return capabilities.size();
  }
}
