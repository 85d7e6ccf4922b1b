/**
 * The classes that users name in Spark's configuration: {@link io.streamhouse.spark.StreamhouseCatalog}, {@link
 * io.streamhouse.spark.StreamhouseViewCatalog} with views for Spark 4.2 and newer, and {@link
 * io.streamhouse.spark.SessionExtensions}, which Spark loads through the service list of the jar.
 *
 * <p>Everything else lives in sub-packages. From the bottom up they are {@code util}; {@code metrics}, {@code storage}
 * and {@code cdc}; {@code rpc}; {@code catalog}, {@code procedure} and {@code read}; {@code stream}; {@code realtime};
 * {@code scan}; {@code write}; {@code rules}; and this package. A package depends only on packages below it. A test of
 * the project checks that.
 */
package io.streamhouse.spark;
