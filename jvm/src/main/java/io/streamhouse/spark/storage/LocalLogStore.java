package io.streamhouse.spark.storage;

import io.streamhouse.spark.util.SparkErrors;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** A log on the local disk. */
public final class LocalLogStore implements LogStore {
  private final Path folder;

  public LocalLogStore(Path folder) {
    this.folder = folder;
  }

  @Override
  public byte[] read(String name) throws IOException {
    Path path = folder.resolve(name);
    if (!Files.exists(path)) return null; // cheaper than an exception, some thousand times a second
    try {
      return Files.readAllBytes(path);
    } catch (NoSuchFileException error) {
      return null;
    }
  }

  @Override
  public byte[][] read(String name, long bytes, boolean isExact, long[]... ranges) throws IOException {
    byte[][] contents = new byte[ranges.length][];
    try (FileChannel file = FileChannel.open(folder.resolve(name))) {
      if (file.size() < bytes || (isExact && file.size() != bytes)) {
        throw SparkErrors.corruptData(displayPath(name) + " has " + file.size() + " bytes, expected "
            + bytes);
      }
      for (int i = 0; i < ranges.length; i++) {
        contents[i] = new byte[Math.toIntExact(ranges[i][1] - ranges[i][0])];
        ByteBuffer target = ByteBuffer.wrap(contents[i]);
        while (target.hasRemaining() && file.read(target, ranges[i][0] + target.position()) >= 0) {}
      }
    } catch (NoSuchFileException error) {
      return null;
    }
    return contents;
  }

  @Override
  public String displayPath(String name) {
    return folder.resolve(name).toString();
  }
}
