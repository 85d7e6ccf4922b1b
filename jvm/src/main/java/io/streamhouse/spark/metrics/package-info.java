/**
 * Metrics of scans and writes. A task counts in {@link io.streamhouse.spark.metrics.TaskCounters}; Spark sums up the
 * values with one {@code CustomMetric} class per metric, which it instantiates by name, so each is a public class. A
 * stream's counters travel to the driver in a {@link io.streamhouse.spark.metrics.MetricsCommitMessage}.
 *
 * <p>Depends on {@code util}.
 */
package io.streamhouse.spark.metrics;
