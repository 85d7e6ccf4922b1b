package io.streamhouse.spark.procedure;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.rpc.PythonPartitions;
import io.streamhouse.spark.rpc.PythonRpc;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.apache.spark.JobArtifactSet;
import org.apache.spark.JobArtifactState;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.read.InputPartition;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Runs the Spark jobs of one procedure call. Python executes the procedure in a process without a session. It requests
 * each job with a line on a Unix socket in a folder that only this user can access, and a {@link SessionGateway} if it
 * needs the session.
 *
 *
 * <p>Jobs run in the thread of the statement. They have its group, tags, pool and description, and are cancelled with
 * it. If a job fails, the socket is closed without an answer, so that Python commits nothing.
 */
final class ProcedureJobServer implements Closeable {
  private static final String DESCRIPTION = "spark.job.description";
  private static final String SOCKET = "jobs";
  private static final int FOLDER_BYTES_MAX = 60;
  private static final Path SHORT_FOLDER = Path.of("/tmp");

  /** How long a statement that ends early waits for Python to notice it. */
  private static final long NOTICE_TIMEOUT_MS = 10_000;

  private final PythonRpc python;
  private final SparkSession session = SparkSession.active();
  private final JavaSparkContext spark = JavaSparkContext.fromSparkContext(session.sparkContext());
  private final String tag = "streamhouse-" + UUID.randomUUID();
  private final Path folder;
  private final ServerSocketChannel server;
  private volatile SocketChannel connection;
  private volatile SessionGateway gateway;
  private FutureTask<JsonNode> call;
  private Exception failure;

  private ProcedureJobServer(PythonRpc python) throws IOException {
    this.python = python;
    folder = Files.createTempDirectory(socketParent(Path.of(System.getProperty("java.io.tmpdir"))), "streamhouse");
    server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    try {
      server.bind(UnixDomainSocketAddress.of(socketPath()));
    } catch (IOException error) {
      close();
      throw error;
    }
  }

  /** Returns a folder for the socket. The address of a socket is limited to about a hundred bytes. */
  static Path socketParent(Path folder) {
    boolean isShort = folder.toString().getBytes(StandardCharsets.UTF_8).length <= FOLDER_BYTES_MAX;
    return isShort || !Files.isWritable(SHORT_FOLDER) ? folder : SHORT_FOLDER;
  }

  static ProcedureJobServer start(PythonRpc python) {
    return SparkErrors.unwrapPythonErrors(() -> new ProcedureJobServer(python));
  }

  String socketPath() {
    return folder.resolve(SOCKET).toString();
  }

  /** Calls Python in another thread, runs the jobs that it requests in this thread, and returns its answer. */
  JsonNode run(Callable<JsonNode> procedureCall) {
    call = new FutureTask<>(procedureCall);
    Thread caller = new Thread(callTask(), "streamhouse-procedure");
    caller.setDaemon(true);
    caller.start();
    return SparkErrors.unwrapPythonErrors(() -> {
      try {
        serve();
      } catch (ClosedByInterruptException interrupted) {
        failure = interrupted;
      } catch (IOException error) {
        // the call has ended or its process died: the answer shows which
      }
      if (failure == null) return awaitAnswer();
      abandon(caller);
      throw failure;
    });
  }

  private Runnable callTask() {
    JobArtifactState artifacts = JobArtifactSet.getCurrentJobArtifactState().getOrElse(() -> null);
    return () -> {
      try {
        JobArtifactSet.withActiveJobArtifactState(artifacts, () -> {
          call.run();
          return null;
        });
      } finally {
        close();
        spark.cancelJobsWithTag(tag); // the call has ended, so no one needs their results
      }
    };
  }

  private JsonNode awaitAnswer() throws Exception {
    try {
      return call.get();
    } catch (ExecutionException error) {
      if (error.getCause() instanceof Exception) throw (Exception) error.getCause();
      throw error;
    }
  }

  /** Closes the socket, so that Python notices that there will be no answer, and waits a while for it to end. */
  private void abandon(Thread caller) throws InterruptedException {
    boolean wasInterrupted = Thread.interrupted();
    close();
    caller.join(NOTICE_TIMEOUT_MS);
    caller.interrupt();
    if (wasInterrupted) Thread.currentThread().interrupt();
  }

  private void serve() throws IOException {
    while (true) {
      try (SocketChannel channel = server.accept()) {
        connection = channel;
        BufferedReader lines = new BufferedReader(Channels.newReader(channel, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          ObjectNode reply = handle(Json.parse(line));
          if (reply == null) return;
          ByteBuffer answer = StandardCharsets.UTF_8.encode(reply + "\n");
          while (answer.hasRemaining()) channel.write(answer);
        }
      }
    }
  }

  /** Runs one job or opens the session gateway. Returns null if that failed or the call has ended. */
  private ObjectNode handle(JsonNode job) {
    String before = spark.getLocalProperty(DESCRIPTION);
    Set<String> tags = jobTags();
    tags.removeAll(spark.getJobTags());
    spark.setLocalProperty(DESCRIPTION, job.get("description").asText());
    tags.forEach(spark::addJobTag);
    try {
      if (job.path("session").asBoolean()) return openGateway();
      ObjectNode reply = Json.object();
      ArrayNode outcomes = reply.putArray("outcomes");
      runTasks(job.get("tasks").toString()).forEach(outcomes::add);
      return reply;
    } catch (Exception error) {
      if (!call.isDone()) failure = error;
      spark.cancelJobsWithTag(tag); // an interrupt alone leaves the job running
      return null;
    } finally {
      tags.forEach(spark::removeJobTag);
      spark.setLocalProperty(DESCRIPTION, before);
    }
  }

  private ObjectNode openGateway() {
    if (gateway == null) gateway = new SessionGateway(session);
    if (!server.isOpen()) gateway.close(); // the call has ended, and `close` ran before this gateway existed
    return gateway.connectionInfo();
  }

  /**
   * Returns the tag of this call and those that the session uses to interrupt its queries. Spark adds the latter to
   * queries only.
   */
  private Set<String> jobTags() {
    Set<String> tags = new HashSet<>(CollectionConverters.asJava(session.managedJobTags().get()).values());
    tags.add(session.sessionJobTag());
    tags.add(tag);
    return tags;
  }

  private List<String> runTasks(String tasks) {
    PythonPartitions work = python.planPartitions("run_tasks", tasks);
    List<InputPartition> partitions = Arrays.asList(work.partitions);
    TaskOutcomeFunction outcome = new TaskOutcomeFunction(work.readerFactory);
    return SparkErrors.unwrapPythonErrors(() -> spark.parallelize(partitions, partitions.size())
        .map(outcome).collect());
  }

  @Override
  public void close() {
    try {
      server.close();
      SocketChannel open = connection;
      if (open != null) open.close();
      SessionGateway openedGateway = gateway;
      if (openedGateway != null) openedGateway.close();
      Files.deleteIfExists(Path.of(socketPath()));
      Files.deleteIfExists(folder);
    } catch (IOException ignored) {
      // an empty folder remains
    }
  }
}
