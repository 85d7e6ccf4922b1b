package io.streamhouse.spark.storage;

import io.streamhouse.spark.util.WeightedLruCache;
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
 * S3A for the files of a lake, with fewer requests. Spark's Parquet reader requests the size of each file before it
 * opens it. The plan already has the sizes, and {@link FooterPrefetchStream} reads the end with one request. Lake files
 * are immutable.
 */
public final class LakeFileSystem extends FilterFileSystem {
  private static final WeightedLruCache<Long> SIZES = new WeightedLruCache<>(4 << 20);

  /** Registers the sizes of files that this process is about to read. */
  public static void registerSizes(FilePartition partition) {
    for (PartitionedFile file : partition.files()) SIZES.put(file.toPath().toString(), file.fileSize(), 0);
  }

  @Override
  public void initialize(URI name, Configuration settings) throws IOException {
    fs = ReflectionUtils.newInstance(FileSystem.getFileSystemClass("s3a", settings), null);
    super.initialize(name, settings);
  }

  @Override
  public FileStatus getFileStatus(Path path) throws IOException {
    Long size = SIZES.get(path.toString());
    return size == null ? super.getFileStatus(path) : new FileStatus(size, false, 1, size, 0, path);
  }

  @Override
  public FSDataInputStream open(Path path, int bufferBytes) throws IOException {
    return withFooterPrefetch(path, super.open(path, bufferBytes));
  }

  @Override
  public FutureDataInputStreamBuilder openFile(Path path) throws IOException {
    return new OpenFileBuilder(path);
  }

  @Override
  protected CompletableFuture<FSDataInputStream> openFileWithOptions(Path path, OpenFileParameters parameters)
      throws IOException {
    return super.openFileWithOptions(path, parameters).thenApply(stream -> withFooterPrefetch(path, stream));
  }

  private static FSDataInputStream withFooterPrefetch(Path path, FSDataInputStream stream) {
    Long size = SIZES.get(path.toString());
    if (size == null) return stream;
    return new FSDataInputStream(new FooterPrefetchStream(stream, path, size));
  }

  private final class OpenFileBuilder extends FutureDataInputStreamBuilderImpl {
    OpenFileBuilder(Path path) {
      super(LakeFileSystem.this, path);
    }

    @Override
    public CompletableFuture<FSDataInputStream> build() throws IOException {
      OpenFileParameters parameters = new OpenFileParameters().withMandatoryKeys(getMandatoryKeys())
          .withOptionalKeys(getOptionalKeys()).withOptions(getOptions()).withBufferSize(getBufferSize());
      return openFileWithOptions(getPath(), parameters.withStatus(getStatus()));
    }
  }
}
