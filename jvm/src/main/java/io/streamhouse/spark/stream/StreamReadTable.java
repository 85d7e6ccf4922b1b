package io.streamhouse.spark.stream;

import io.streamhouse.spark.rpc.InternalOptions;
import io.streamhouse.spark.rpc.PythonRpc;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The table of {@code format("streamhouse")} that a stream reads. It wraps the table of Python's data source and
 * enables pushdown.
 */
public final class StreamReadTable implements SupportsRead {
  private final PythonTable source;

  public StreamReadTable(PythonTable source) {
    this.source = source;
  }

  @Override
  public String name() {
    return source.name();
  }

  @Override
  public Column[] columns() {
    return source.columns();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return source.capabilities();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return () -> new StreamScan(source.schema(), options);
  }

  /** DataFrames of one {@code load} are the same stream to Spark. */
  @Override
  public boolean equals(Object other) {
    return other instanceof StreamReadTable && ((StreamReadTable) other).source == source;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(source);
  }

  /** The scan from which Spark creates the stream, before it knows what the query needs. */
  private static final class StreamScan implements Scan {
    private final StructType schema;
    private final CaseInsensitiveStringMap options;

    StreamScan(StructType schema, CaseInsensitiveStringMap options) {
      this.schema = schema;
      this.options = options;
    }

    @Override
    public StructType readSchema() {
      return schema;
    }

    @Override
    public String description() {
      return PythonRpc.SOURCE_NAME + " " + options.get("path");
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      PythonRpc python = PythonRpc.forUserSource(options.asCaseSensitiveMap());
      Map<String, String> allOptions = python.mergeOptions(Map.of(InternalOptions.NEED, "true"));
      CaseInsensitiveStringMap sourceOptions = new CaseInsensitiveStringMap(allOptions);
      SupportsRead inner = (SupportsRead) python.dataSource().getTable(schema, new Transform[0], allOptions);
      MicroBatchStream rows = inner.newScanBuilder(sourceOptions).build().toMicroBatchStream(checkpoint);
      return TableStream.of(options.get("path"), python, schema, rows);
    }
  }
}
