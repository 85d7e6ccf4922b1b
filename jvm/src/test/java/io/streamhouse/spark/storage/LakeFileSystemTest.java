package io.streamhouse.spark.storage;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.spark.paths.SparkPath;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.datasources.FilePartition;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** The size of a file that a plan names is not requested. */
class LakeFileSystemTest {
  private static final List<String> REQUESTS = new ArrayList<>();

  /** Stands for S3A. */
  public static final class Store extends RawLocalFileSystem {
    @Override
    public FileStatus getFileStatus(Path path) throws IOException {
      REQUESTS.add(path.getName());
      return super.getFileStatus(path);
    }
  }

  private static PartitionedFile part(Path path, long size) {
    SparkPath sparkPath = SparkPath.fromPath(path);
    return new PartitionedFile(
        InternalRow.empty(), sparkPath, 0, size, new String[0], 0, size,
            scala.collection.immutable.Map$.MODULE$.empty());
  }

  @Test
  void sizesThatAPlanNamesAreNotRequested(@TempDir java.nio.file.Path folder) throws Exception {
    Configuration settings = new Configuration();
    settings.set("fs.s3a.impl", Store.class.getName());
    settings.setBoolean("fs.s3a.impl.disable.cache", true);
    URI place = folder.toUri();
    try (LakeFileSystem files = new LakeFileSystem()) {
      files.initialize(place, settings);
      Path named = new Path(new Path(place), "a b=1.parquet");
      Path other = new Path(new Path(place), "other.parquet");
      Path missing = new Path(new Path(place), "gone.parquet");
      Files.writeString(folder.resolve("a b=1.parquet"), "12345");
      Files.writeString(folder.resolve("other.parquet"), "123");
      LakeFileSystem.registerSizes(new FilePartition(0, new PartitionedFile[] {part(named, 5), part(missing, 7)}));
      REQUESTS.clear();
      assertEquals(5, files.getFileStatus(named).getLen());
      assertEquals(named, files.getFileStatus(named).getPath());
      assertEquals(List.of(), REQUESTS);
      assertEquals(3, files.getFileStatus(other).getLen());
      assertEquals(List.of("other.parquet"), REQUESTS);
      try (FSDataInputStream file = files.openFile(named).withFileStatus(files.getFileStatus(named)).build().get()) {
        assertEquals("12345", new String(file.readAllBytes()));
      }
      assertThrows(FileNotFoundException.class, () -> files.open(missing).close());
    }
  }
}
