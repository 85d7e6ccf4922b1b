package io.streamhouse.spark.procedure;

import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import java.io.Closeable;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.api.python.Py4JServer;
import org.apache.spark.sql.classic.SparkSession;

/**
 * A Py4J gateway through which one Python process on the driver's host can use a session, for as long as it is open.
 *
 *
 * <p>Jobs that Python runs through it have the group, tags and pool of the thread that opened it.
 */
public final class SessionGateway implements Closeable {
  private static final Map<String, SparkSession> OPEN = new ConcurrentHashMap<>();

  private final String token = UUID.randomUUID().toString();
  private final Py4JServer server;

  SessionGateway(SparkSession session) {
    server = new Py4JServer(session.sparkContext().conf());
    server.start();
    OPEN.put(token, session);
  }

  /** Returns the session of an open gateway, or null. Python calls this through Py4J. */
  public static SparkSession session(String token) {
    return OPEN.get(token);
  }

  /** Returns port, secret and token: all that a local process needs to connect. It is a secret. */
  ObjectNode connectionInfo() {
    return Json.object().put("port", server.getListeningPort()).put("secret", server.secret()).put("token", token);
  }

  @Override
  public void close() {
    OPEN.remove(token);
    server.shutdown();
  }
}
