package io.streamhouse.spark.write;

import java.util.Map;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The info of another write with a different schema and options. */
final class PythonWriteInfo implements LogicalWriteInfo {
  private final LogicalWriteInfo info;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;

  PythonWriteInfo(LogicalWriteInfo info, StructType schema, Map<String, String> options) {
    this.info = info;
    this.schema = schema;
    this.options = new CaseInsensitiveStringMap(options);
  }

  @Override
  public CaseInsensitiveStringMap options() {
    return options;
  }

  @Override
  public String queryId() {
    return info.queryId();
  }

  @Override
  public StructType schema() {
    return schema;
  }
}
