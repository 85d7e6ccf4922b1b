package io.streamhouse.spark.rpc;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.StructType;

/** A scan of rows that an answer of Python contained. */
public final class RpcResultScan implements LocalScan {
  private final StructType schema;
  private final InternalRow[] rows;

  public RpcResultScan(StructType schema, InternalRow[] rows) {
    this.schema = schema;
    this.rows = rows;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public InternalRow[] rows() {
    return rows;
  }
}
