package io.streamhouse.spark;

import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.ReflectionUtils;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/**
 * S3A for the files of a lake. Spark's Parquet reader asks for the size of each file before it opens it: of a file that
 * a plan names the size is known, so that takes no request. A lake's file is never written again under its name.
 */
public final class LakeFileSystem extends FilterFileSystem {
  private static final Kept<Long> SIZES = new Kept<>(4 << 20);

  /** Notes the sizes of files that are about to be read in this process. */
  static void expect(FilePartition partition) {
    for (PartitionedFile file : partition.files()) SIZES.keep(file.toPath().toString(), file.fileSize(), 0);
  }

  @Override
  public void initialize(URI name, Configuration settings) throws IOException {
    fs = ReflectionUtils.newInstance(FileSystem.getFileSystemClass("s3a", settings), null);
    super.initialize(name, settings);
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Long size = SIZES.find(path.toString());
    return size == null ? super.getFileStatus(path) : new FileStatus(size, false, 1, size, 0, path);
  }
}
