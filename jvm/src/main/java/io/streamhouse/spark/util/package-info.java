/**
 * Helpers without knowledge of tables: JSON trees, Spark's analysis errors, a weighted LRU cache and the XXH3 checksum.
 *
 * <p>Depends on no other package of the connector. All others may depend on it.
 */
package io.streamhouse.spark.util;
