package io.streamhouse.spark;

import java.io.IOException;
import java.net.URI;
import java.util.concurrent.CompletableFuture;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.impl.FutureDataInputStreamBuilderImpl;
import org.apache.hadoop.fs.impl.OpenFileParameters;
import org.apache.hadoop.util.ReflectionUtils;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;

/**
 * S3A for the files of a lake. Spark's Parquet reader asks for the size of each file before it opens it: of a file that
 * a plan names the size is known, so that takes no request, and its end comes by one ({@link TailedStream}). A lake's
 * file is never written again under its name.
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

  @Override
  public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
    return tailed(path, super.open(path, bufferBytes));
  }

  @Override
  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    return new Opening(path);
  }

  @Override
  protected CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters how)
      throws IOException {
    return super.openFileWithOptions(path, how).thenApply(opened -> tailed(path, opened));
  }

  private static FSDataInputStream tailed(Path path, FSDataInputStream opened) {
    Long size = SIZES.find(path.toString());
    if (size == null) return opened;
    return new FSDataInputStream(new TailedStream(opened, path, size));
  }

  private final class Opening extends FutureDataInputStreamBuilderImpl {
    Opening(Path path) {
      super(LakeFileSystem.this, path);
    }

    @Override
    public CompletableFuture<FSDataInputStream> build() throws IOException {
      OpenFileParameters how = new OpenFileParameters().withMandatoryKeys(getMandatoryKeys())
          .withOptionalKeys(getOptionalKeys()).withOptions(getOptions()).withBufferSize(getBufferSize());
      return openFileWithOptions(getPath(), how.withStatus(getStatus()));
    }
  }
}
