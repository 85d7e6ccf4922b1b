package io.streamhouse.spark.procedure;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Temporary folders for a socket, whose address is limited to about a hundred bytes. */
class ProcedureJobServerTest {
  @Test
  void aSocketPathIsShortEvenInADeepFolder(@TempDir Path folder) throws IOException {
    Path deep = Files.createDirectories(folder.resolve("application".repeat(6)).resolve("container".repeat(4)));
    Path folderOfSocket = Files.createTempDirectory(ProcedureJobServer.socketParent(deep), "streamhouse");
    Path address = folderOfSocket.resolve("jobs");
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      server.bind(UnixDomainSocketAddress.of(address));
    } finally {
      Files.deleteIfExists(address);
      Files.deleteIfExists(folderOfSocket);
    }
  }

  @Test
  void aShortFolderIsUsed() {
    Path usual = Path.of("/var/tmp");
    assertEquals(usual, ProcedureJobServer.socketParent(usual));
  }
}
