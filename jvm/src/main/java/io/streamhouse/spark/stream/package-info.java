/**
 * Micro-batch streams. {@link io.streamhouse.spark.stream.TableStream} wraps the stream of Python's data source, and
 * {@link io.streamhouse.spark.stream.PushdownStream} is one of its batches with fewer columns and rows. {@link
 * io.streamhouse.spark.stream.ChangelogStream} streams the changes of a table.
 *
 * <p>Depends on {@code catalog}, {@code read}, {@code rpc}, {@code metrics} and {@code util}.
 */
package io.streamhouse.spark.stream;
