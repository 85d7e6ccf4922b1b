/**
 * Readers of partitions, which run in tasks. {@link io.streamhouse.spark.read.HybridReaderFactory} reads a partition
 * with Spark's vectorized Parquet reader or with Python, which sends Arrow batches. {@link
 * io.streamhouse.spark.read.DeleteFilterReader} removes deleted rows from the batches of lake files.
 *
 * <p>Depends on {@code storage}, {@code metrics} and {@code util}.
 */
package io.streamhouse.spark.read;
