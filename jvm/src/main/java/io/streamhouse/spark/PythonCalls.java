package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Calls of Python, with the settings of one catalog.
 *
 * <p>A call is the schema inference of the data source {@code streamhouse} with two options, an operation and its
 * arguments as JSON. The answer is JSON in the metadata of the one field of the schema that comes back. It runs in
 * Spark's planner worker, which is reused, and costs about 20 ms. An answer with {@link Grounds} is given again while
 * these hold: a query of a table that did not change asks Python nothing.
 */
class PythonCalls {
  static final String SOURCE = "streamhouse";
  private static final long KEPT_CHARACTERS_MAX = 4 << 20;

  /** While the worker begins, calls take turns: Spark would start another worker for a call beside it. */
  static final ReentrantLock TURN = new ReentrantLock(true);

  private static volatile Thread beginning;

  private final Map<String, String> settings;
  private final Kept<Grounds> answers = new Kept<>(KEPT_CHARACTERS_MAX);
  private final Kept<PythonWork> work = new Kept<>(KEPT_CHARACTERS_MAX);
  /** Whether Spark looks for the data source: where its Python has no such module, it says so in its own words. */
  private volatile boolean looksUp;

  PythonCalls(Map<String, String> settings) {
    this.settings = new HashMap<>(settings);
  }

  /** Calls of the data source that Spark has found for the user by its name. */
  static PythonCalls asUsers(Map<String, String> settings) {
    PythonCalls calls = new PythonCalls(settings);
    calls.looksUp = true;
    return calls;
  }

  /**
   * Has Spark start the worker of calls, and that load modules, while the caller goes on. Where this fails, the first
   * call does too, and tells why.
   */
  Thread begin() {
    Thread thread = new Thread(() -> parts("reads", "lakes"), "streamhouse-begin");
    thread.setDaemon(true);
    thread.setUncaughtExceptionHandler((failed, error) -> {});
    beginning = thread;
    thread.start();
    return thread;
  }

  private void parts(String... parts) {
    for (String part : parts) this.ask("begin", JsonTree.object().put("part", part));
  }

  /** The package's own data source. */
  PythonDataSourceV2 source() {
    PythonDataSourceV2 source = looksUp ? new PythonDataSourceV2() : new OwnSource();
    source.setShortName(SOURCE);
    return source;
  }

  /** Settings of the catalog, with those of a query or a call. The caller may change the map. */
  Map<String, String> options(Map<String, String> more) {
    Map<String, String> all = new HashMap<>(settings);
    all.putAll(more);
    return all;
  }

  /** The session's settings of Hadoop. */
  Configuration hadoop() {
    return FileSystems.session();
  }

  /** A setting of the catalog, by its name in any case. It may be a secret. */
  String setting(String name) {
    return new CaseInsensitiveStringMap(settings).get(name);
  }

  /** The options of a call. */
  static Map<String, String> call(String operation, String arguments) {
    return Map.of(InternalOptions.CALL, operation, InternalOptions.ARGUMENTS, arguments);
  }

  /**
   * Python's answer. An error is an AnalysisException with Python's text. The conditions that the caller handles are
   * thrown as {@link Refused}.
   */
  JsonNode ask(String operation, ObjectNode arguments, String... handled) {
    String given = arguments.toString();
    String call = operation + given;
    Grounds kept = answers.find(call);
    if (kept != null && kept.hold(this)) return kept.answer;
    long sinceNs = System.nanoTime();
    String text = reply(operation, given);
    JsonNode answer = answer(text, handled);
    Grounds grounds = Grounds.of(answer, sinceNs);
    if (grounds != null) answers.keep(call, grounds, text.length());
    return answer;
  }

  /** Python's reply as text. */
  String reply(String operation, String arguments) {
    CaseInsensitiveStringMap all = new CaseInsensitiveStringMap(options(call(operation, arguments)));
    if (beginning == null || !beginning.isAlive()) return reply(all);
    TURN.lock();
    try {
      return reply(all);
    } finally {
      TURN.unlock();
    }
  }

  /** The one call of Python here. */
  String reply(CaseInsensitiveStringMap all) {
    try {
      return source().inferSchema(all).fields()[0].metadata().getString("json");
    } catch (Exception | LinkageError error) {
      if (looksUp || !OwnSource.isMissing(error)) throw error;
      looksUp = true;
      return reply(all);
    }
  }

  /** The partitions and the reader of a plan that Python made, by its text: Spark asks Python for them. */
  PythonWork work(String text) {
    return work("read", text);
  }

  /** What Python reads by another operation than that of plans, {@code read}. */
  PythonWork work(String operation, String text) {
    String known = operation + text;
    PythonWork kept = work.find(known);
    if (kept != null) return kept;
    PythonWork planned = planned(operation, text);
    work.keep(known, planned, text.length());
    return planned;
  }

  /** The same, asked anew. */
  PythonWork planned(String operation, String text) {
    Map<String, String> all = options(call(operation, text));
    StructType batches = new StructType().add("batch", DataTypes.BinaryType, true);
    SupportsRead table = (SupportsRead) source().getTable(batches, new Transform[0], all);
    Batch batch = table.newScanBuilder(new CaseInsensitiveStringMap(all)).build().toBatch();
    return new PythonWork(batch.planInputPartitions(), batch.createReaderFactory());
  }

  /** Asks Python again for all that is asked from now on. */
  void forget() {
    answers.clear();
    work.clear();
  }

  /** The answer in a reply. */
  static JsonNode answer(String text, String... handled) {
    JsonNode reply = JsonTree.parse(text);
    if (!reply.has("error")) return reply.get("ok");
    String condition = reply.get("error").get("condition").asText();
    String message = reply.get("error").get("message").asText();
    if (Arrays.asList(handled).contains(condition)) throw new Refused(condition, message);
    throw Errors.analysis(message);
  }
}
