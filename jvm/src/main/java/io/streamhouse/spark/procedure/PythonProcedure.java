package io.streamhouse.spark.procedure;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.rpc.RpcResultScan;
import io.streamhouse.spark.rpc.ValueJson;
import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/** A stored procedure that Python describes and executes. */
public final class PythonProcedure implements UnboundProcedure, BoundProcedure {
  private final PythonRpc python;
  private final JsonNode definition;

  public PythonProcedure(PythonRpc python, JsonNode definition) {
    this.python = python;
    this.definition = definition;
  }

  @Override
  public String name() {
    return definition.get("name").asText();
  }

  @Override
  public String description() {
    return definition.get("description").asText();
  }

  @Override
  public BoundProcedure bind(StructType inputs) {
    return this;
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public ProcedureParameter[] parameters() {
    List<ProcedureParameter> parameters = new ArrayList<>();
    for (JsonNode parameter : definition.get("parameters")) {
      ProcedureParameter.Builder builder =
          ProcedureParameter.in(parameter.get("name").asText(), DataType.fromJson(parameter.get("type").asText()))
              .comment(parameter.get("comment").asText());
      JsonNode defaultValue = parameter.get("default");
      if (!defaultValue.isNull()) builder = builder.defaultValue(defaultValue.asText());
      parameters.add(builder.build());
    }
    return parameters.toArray(new ProcedureParameter[0]);
  }

  @Override
  public Iterator<Scan> call(InternalRow inputs) {
    ObjectNode arguments = Json.object().put("name", name());
    ObjectNode argumentsJson = arguments.putObject("arguments");
    int position = 0;
    for (ProcedureParameter parameter : parameters()) {
      Object value = inputs.isNullAt(position) ? null : inputs.get(position, parameter.dataType());
      position++;
      argumentsJson.set(parameter.name(), ValueJson.of(value));
    }
    JsonNode answer = definition.path("runs_jobs").asBoolean() ? callWithJobs(arguments) : callPython(arguments, null);
    StructType schema = (StructType) DataType.fromJson(answer.get("schema").asText());
    List<InternalRow> rows = new ArrayList<>();
    for (JsonNode row : answer.get("rows")) rows.add(ValueJson.readRow(row, schema));
    return List.<Scan>of(new RpcResultScan(schema, rows.toArray(new InternalRow[0]))).iterator();
  }

  private JsonNode callPython(ObjectNode arguments, String jobs) {
    return python.call("call_procedure", arguments.put("jobs", jobs));
  }

  private JsonNode callWithJobs(ObjectNode arguments) {
    try (ProcedureJobServer jobs = ProcedureJobServer.start(python)) {
      return jobs.run(() -> callPython(arguments, jobs.socketPath()));
    }
  }
}
