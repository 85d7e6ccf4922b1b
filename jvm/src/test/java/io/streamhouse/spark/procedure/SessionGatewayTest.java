package io.streamhouse.spark.procedure;

import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import java.time.Duration;
import org.apache.spark.sql.classic.SparkSession;
import org.junit.jupiter.api.Test;

/** A gateway is open as long as its call, and only for a client that has the token. */
class SessionGatewayTest {
  @Test
  void theTokenGivesTheSessionUntilTheGatewayIsClosed() throws IOException {
    SparkSession session = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate();
    try {
      JsonNode way;
      try (SessionGateway gateway = new SessionGateway(session)) {
        way = gateway.connectionInfo();
        assertSame(session, SessionGateway.session(way.get("token").asText()));
        assertNull(SessionGateway.session("another"));
        assertTrue(way.get("secret").asText().length() > 20);
        new Socket(InetAddress.getLoopbackAddress(), way.get("port").asInt()).close();
      }
      assertNull(SessionGateway.session(way.get("token").asText()));
      int port = way.get("port").asInt();
      assertTimeoutPreemptively(Duration.ofSeconds(30), () -> { while (connects(port)) Thread.sleep(10); });
    } finally {
      session.stop();
    }
  }

  /** A server's socket is closed once its thread no longer waits for a connection. */
  private static boolean connects(int port) {
    try (Socket socket = new Socket(InetAddress.getLoopbackAddress(), port)) {
      return socket.isConnected();
    } catch (IOException refused) {
      return false;
    }
  }
}
