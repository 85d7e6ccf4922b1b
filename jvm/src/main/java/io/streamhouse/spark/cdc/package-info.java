/**
 * Decoding of change events. {@link io.streamhouse.spark.cdc.JsonEvents} turns Debezium, Maxwell and Canal events into
 * row changes, and {@link io.streamhouse.spark.cdc.AvroEvents} turns Debezium's Avro events into JSON first. Python
 * registers both as functions of Spark SQL.
 *
 * <p>Depends on {@code util}.
 */
package io.streamhouse.spark.cdc;
