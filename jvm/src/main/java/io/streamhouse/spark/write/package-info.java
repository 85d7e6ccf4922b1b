/**
 * Writes and row-level operations. {@link io.streamhouse.spark.write.WritableTable} creates the writes of {@code
 * INSERT}, {@code UPDATE}, {@code DELETE}, {@code MERGE} and of streams. Rows go to Python's writers through {@link
 * io.streamhouse.spark.write.PythonWriter} and {@link io.streamhouse.spark.write.RowDeltaWriter}. {@link
 * io.streamhouse.spark.write.RealTimeWrite} is the write of a stream in real-time mode.
 *
 * <p>Depends on {@code scan}, {@code realtime} and the packages below them.
 */
package io.streamhouse.spark.write;
