package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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

/** A procedure that Python describes and runs. */
final class Procedure implements UnboundProcedure, BoundProcedure {
  private final PythonCalls python;
  private final JsonNode described;

  Procedure(PythonCalls python, JsonNode described) {
    this.python = python;
    this.described = described;
  }

  @Override
  public String name() {
    return described.get("name").asText();
  }

  @Override
  public String description() {
    return described.get("description").asText();
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
    List<ProcedureParameter> found = new ArrayList<>();
    for (JsonNode parameter : described.get("parameters")) {
      ProcedureParameter.Builder builder =
          ProcedureParameter.in(parameter.get("name").asText(), DataType.fromJson(parameter.get("type").asText()))
              .comment(parameter.get("comment").asText());
      JsonNode defaultValue = parameter.get("default");
      if (!defaultValue.isNull()) builder = builder.defaultValue(defaultValue.asText());
      found.add(builder.build());
    }
    return found.toArray(new ProcedureParameter[0]);
  }

  @Override
  public Iterator<Scan> call(InternalRow inputs) {
    ObjectNode arguments = JsonTree.object().put("name", name());
    ObjectNode given = arguments.putObject("arguments");
    int position = 0;
    for (ProcedureParameter parameter : parameters()) {
      Object value = inputs.isNullAt(position) ? null : inputs.get(position, parameter.dataType());
      position++;
      given.set(parameter.name(), ValueJson.of(value));
    }
    JsonNode answer = described.path("runs_jobs").asBoolean() ? calledWithJobs(arguments) : called(arguments, null);
    StructType schema = (StructType) DataType.fromJson(answer.get("schema").asText());
    List<InternalRow> rows = new ArrayList<>();
    for (JsonNode row : answer.get("rows")) rows.add(ValueJson.readRow(row, schema));
    return List.<Scan>of(new AnsweredRows(schema, rows.toArray(new InternalRow[0]))).iterator();
  }

  private JsonNode called(ObjectNode arguments, String jobs) {
    return python.ask("call_procedure", arguments.put("jobs", jobs));
  }

  private JsonNode calledWithJobs(ObjectNode arguments) {
    try (ProcedureJobs jobs = ProcedureJobs.listening(python)) {
      return jobs.during(() -> called(arguments, jobs.address()));
    }
  }
}
