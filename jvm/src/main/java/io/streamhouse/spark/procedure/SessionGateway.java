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
 * PySpark's own way into this JVM, for one Python process beside the driver and one session, as long as it is open.
 *
 * <p>What Python runs through it has the group, tags and pool of the thread that opened it.
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

  /** The session of an open gateway; null when it is closed. Python calls this. */
  public static SparkSession session(String token) {
    return OPEN.get(token);
  }

  /** All that a process of this host needs to come in. It is a secret. */
  ObjectNode connectionInfo() {
    return Json.object().put("port", server.getListeningPort()).put("secret", server.secret()).put("token", token);
  }

  @Override
  public void close() {
    OPEN.remove(token);
    server.shutdown();
  }
}
