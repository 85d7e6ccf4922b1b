/**
 * Batch scans and pushdown. {@link io.streamhouse.spark.scan.ReadableTable} is a table at one pinned version, {@link
 * io.streamhouse.spark.scan.TableScanBuilder} collects the filters, columns, limit and aggregates that Spark pushes
 * down, and {@link io.streamhouse.spark.scan.TableScan} plans the partitions or starts a stream. {@link
 * io.streamhouse.spark.scan.TableChangelog} serves Spark's {@code CHANGES} queries.
 *
 * <p>Depends on {@code realtime}, {@code stream}, {@code read} and the packages below them.
 */
package io.streamhouse.spark.scan;
