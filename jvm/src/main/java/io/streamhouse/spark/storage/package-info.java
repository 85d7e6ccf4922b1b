/**
 * Access to files through Hadoop's file systems or the local disk. {@link io.streamhouse.spark.storage.LogStore} reads
 * the files of a commit log. {@link io.streamhouse.spark.storage.LakeFileSystem} opens lake files on S3 with fewer
 * requests: file sizes come from the plan, and {@link io.streamhouse.spark.storage.FooterPrefetchStream} reads a footer
 * with one request.
 *
 * <p>Depends on {@code util}.
 */
package io.streamhouse.spark.storage;
