package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
 * The Spark jobs of one call of a procedure. Python carries the procedure out, in a process without a session, and asks
 * for each job by a line at a socket in a folder that only this user can enter. A procedure that needs the session asks
 * for a gateway into it.
 *
 * <p>Jobs run in the thread of the statement: they have its group, tags, pool and description, and are cancelled with
 * it. Where one fails, the socket is closed without an answer, so that Python commits nothing.
 */
final class ProcedureJobs implements Closeable {
  private static final String DESCRIPTION = "spark.job.description";
  private static final String SOCKET = "jobs";
  private static final int FOLDER_BYTES_MAX = 60;
  private static final Path COMMON = Path.of("/tmp");

  /** How long a statement that ends early waits for Python to notice. */
  private static final long NOTICE_MS = 10_000;

  private final PythonCalls python;
  private final SparkSession session = SparkSession.active();
  private final JavaSparkContext spark = JavaSparkContext.fromSparkContext(session.sparkContext());
  private final String tag = "streamhouse-" + UUID.randomUUID();
  private final Path folder;
  private final ServerSocketChannel server;
  private volatile SocketChannel asking;
  private volatile SessionGateway gateway;
  private FutureTask<JsonNode> asked;
  private Exception failure;

  private ProcedureJobs(PythonCalls python) throws IOException {
    this.python = python;
    folder = Files.createTempDirectory(shortEnough(Path.of(System.getProperty("java.io.tmpdir"))), "streamhouse");
    server = ServerSocketChannel.open(StandardProtocolFamily.UNIX);
    try {
      server.bind(UnixDomainSocketAddress.of(address()));
    } catch (IOException error) {
      close();
      throw error;
    }
  }

  /** A folder of temporary files whose path leaves room: the address of a socket has about a hundred bytes. */
  static Path shortEnough(Path usual) {
    boolean isShort = usual.toString().getBytes(StandardCharsets.UTF_8).length <= FOLDER_BYTES_MAX;
    return isShort || !Files.isWritable(COMMON) ? usual : COMMON;
  }

  static ProcedureJobs listening(PythonCalls python) {
    return Errors.plainly(() -> new ProcedureJobs(python));
  }

  String address() {
    return folder.resolve(SOCKET).toString();
  }

  /** Makes the call of Python in another thread, runs in this one the jobs that it asks for, and returns its answer. */
  JsonNode during(Callable<JsonNode> call) {
    asked = new FutureTask<>(call);
    Thread caller = new Thread(called(), "streamhouse-procedure");
    caller.setDaemon(true);
    caller.start();
    return Errors.plainly(() -> {
      try {
        serve();
      } catch (ClosedByInterruptException interrupted) {
        failure = interrupted;
      } catch (IOException ended) {
        // the call is done, or its process is gone: the answer says which
      }
      if (failure == null) return answer();
      end(caller);
      throw failure;
    });
  }

  private Runnable called() {
    JobArtifactState artifacts = JobArtifactSet.getCurrentJobArtifactState().getOrElse(() -> null);
    return () -> {
      try {
        JobArtifactSet.withActiveJobArtifactState(artifacts, () -> {
          asked.run();
          return null;
        });
      } finally {
        close();
        spark.cancelJobsWithTag(tag); // nobody waits for it any more
      }
    };
  }

  private JsonNode answer() throws Exception {
    try {
      return asked.get();
    } catch (ExecutionException error) {
      if (error.getCause() instanceof Exception) throw (Exception) error.getCause();
      throw error;
    }
  }

  /** Lets Python notice that there is no answer. What takes longer ends by itself, as that of a driver that is lost. */
  private void end(Thread caller) throws InterruptedException {
    boolean wasInterrupted = Thread.interrupted();
    close();
    caller.join(NOTICE_MS);
    caller.interrupt();
    if (wasInterrupted) Thread.currentThread().interrupt();
  }

  private void serve() throws IOException {
    while (true) {
      try (SocketChannel channel = server.accept()) {
        asking = channel;
        BufferedReader lines = new BufferedReader(Channels.newReader(channel, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          ObjectNode done = done(JsonTree.parse(line));
          if (done == null) return;
          ByteBuffer answer = StandardCharsets.UTF_8.encode(done + "\n");
          while (answer.hasRemaining()) channel.write(answer);
        }
      }
    }
  }

  /** Runs one job, or opens the session; null where that failed, or the call ended meanwhile. */
  private ObjectNode done(JsonNode job) {
    String before = spark.getLocalProperty(DESCRIPTION);
    Set<String> tags = tags();
    tags.removeAll(spark.getJobTags());
    spark.setLocalProperty(DESCRIPTION, job.get("description").asText());
    tags.forEach(spark::addJobTag);
    try {
      if (job.path("session").asBoolean()) return opened();
      ObjectNode done = JsonTree.object();
      ArrayNode outcomes = done.putArray("outcomes");
      outcomes(job.get("tasks").toString()).forEach(outcomes::add);
      return done;
    } catch (Exception error) {
      if (!asked.isDone()) failure = error;
      spark.cancelJobsWithTag(tag); // an interrupt leaves it behind
      return null;
    } finally {
      tags.forEach(spark::removeJobTag);
      spark.setLocalProperty(DESCRIPTION, before);
    }
  }

  private ObjectNode opened() {
    if (gateway == null) gateway = new SessionGateway(session);
    if (!server.isOpen()) gateway.close(); // the call ended meanwhile, and closed what was there
    return gateway.address();
  }

  /** Our own tag, and those by which the session interrupts its queries, which Spark adds to queries alone. */
  private Set<String> tags() {
    Set<String> found = new HashSet<>(CollectionConverters.asJava(session.managedJobTags().get()).values());
    found.add(session.sessionJobTag());
    found.add(tag);
    return found;
  }

  private List<String> outcomes(String tasks) {
    PythonWork work = python.planned("run_tasks", tasks);
    List<InputPartition> partitions = Arrays.asList(work.partitions);
    TaskOutcome outcome = new TaskOutcome(work.reader);
    return Errors.plainly(() -> spark.parallelize(partitions, partitions.size()).map(outcome).collect());
  }

  @Override
  public void close() {
    try {
      server.close();
      SocketChannel open = asking;
      if (open != null) open.close();
      SessionGateway ours = gateway;
      if (ours != null) ours.close();
      Files.deleteIfExists(Path.of(address()));
      Files.deleteIfExists(folder);
    } catch (IOException ignored) {
      // an empty folder is left
    }
  }
}
