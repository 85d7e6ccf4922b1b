package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Folders of temporary files, for a socket whose address has about a hundred bytes. */
class ProcedureJobsTest {
  @Test
  void aSocketHasRoomHoweverDeepTheFolderOfAContainer(@TempDir Path folder) throws IOException {
    Path deep = Files.createDirectories(folder.resolve("application".repeat(6)).resolve("container".repeat(4)));
    Path made = Files.createTempDirectory(ProcedureJobs.shortEnough(deep), "streamhouse");
    Path address = made.resolve("jobs");
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      server.bind(UnixDomainSocketAddress.of(address));
    } finally {
      Files.deleteIfExists(address);
      Files.deleteIfExists(made);
    }
  }

  @Test
  void aShortFolderStays() {
    Path usual = Path.of("/var/tmp");
    assertEquals(usual, ProcedureJobs.shortEnough(usual));
  }
}
