/**
 * Spark's real-time mode. {@link io.streamhouse.spark.realtime.RealTimeStream} plans a batch, whose tasks follow the
 * commit log with {@link io.streamhouse.spark.realtime.LogTailReader}. {@link
 * io.streamhouse.spark.realtime.RealTimeWriter} commits rows while a task runs. The package also contains the reader of
 * the log's format: commit records, segments and their Arrow batches.
 *
 * <p>Depends on {@code stream} and the packages below it.
 */
package io.streamhouse.spark.realtime;
