/**
 * What the catalog and its tables have in common: {@link io.streamhouse.spark.catalog.PythonCatalog}, the catalog as
 * tables and rules see it, {@link io.streamhouse.spark.catalog.LoadedTable}, the base class of all tables, the JSON of
 * table definitions, table changes and views, and the bucket functions. {@link
 * io.streamhouse.spark.catalog.PipelineRuns} recognizes calls from Spark's declarative pipelines.
 *
 * <p>Depends on {@code rpc} and {@code util}.
 */
package io.streamhouse.spark.catalog;
