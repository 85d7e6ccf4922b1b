package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.net.InetAddress;
import java.net.Socket;
import org.apache.spark.sql.classic.SparkSession;
import org.junit.jupiter.api.Test;

/** The way into a session is open as long as its call, and only for whoever has the token. */
class SessionGatewayTest {
  @Test
  void theSessionIsGivenForTheTokenUntilItIsClosed() throws IOException {
    SparkSession session = SparkSession.builder().master("local[1]").config("spark.ui.enabled", "false").getOrCreate();
    try {
      JsonNode way;
      try (SessionGateway gateway = new SessionGateway(session)) {
        way = gateway.address();
        assertSame(session, SessionGateway.session(way.get("token").asText()));
        assertNull(SessionGateway.session("another"));
        assertTrue(way.get("secret").asText().length() > 20);
        new Socket(InetAddress.getLoopbackAddress(), way.get("port").asInt()).close();
      }
      assertNull(SessionGateway.session(way.get("token").asText()));
      int port = way.get("port").asInt();
      assertThrows(IOException.class, () -> new Socket(InetAddress.getLoopbackAddress(), port).close());
    } finally {
      session.stop();
    }
  }
}
