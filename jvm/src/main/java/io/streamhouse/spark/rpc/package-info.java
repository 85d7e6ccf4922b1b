/**
 * Calls from the JVM into Python. {@link io.streamhouse.spark.rpc.PythonRpc} sends an operation with JSON arguments to
 * Spark's planner worker and caches an answer for as long as its {@link io.streamhouse.spark.rpc.CacheValidators} are
 * valid. The package also holds the JSON encodings of predicates and values, and the option keys that both sides share.
 * {@code jvm/protocol.json} lists every name that crosses the border.
 *
 * <p>Depends on {@code storage} and {@code util}.
 */
package io.streamhouse.spark.rpc;
