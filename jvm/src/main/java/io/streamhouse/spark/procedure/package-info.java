/**
 * Stored procedures. {@link io.streamhouse.spark.procedure.PythonProcedure} passes {@code CALL} on to Python. If a
 * procedure runs Spark jobs, {@link io.streamhouse.spark.procedure.ProcedureJobServer} runs them in the thread of the
 * statement, and {@link io.streamhouse.spark.procedure.SessionGateway} gives the Python process access to the session.
 *
 * <p>Depends on {@code rpc} and {@code util}.
 */
package io.streamhouse.spark.procedure;
