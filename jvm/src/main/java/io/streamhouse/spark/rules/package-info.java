/**
 * Rules of Spark's analyzer and optimizer, which {@link io.streamhouse.spark.SessionExtensions} adds to a session. They
 * read {@code format("streamhouse")} through the catalog's tables, push filters and columns down to streams, and handle
 * generated columns and {@code mergeSchema}.
 *
 * <p>Depends on {@code write}, {@code scan}, {@code realtime}, {@code stream} and the packages below them.
 */
package io.streamhouse.spark.rules;
