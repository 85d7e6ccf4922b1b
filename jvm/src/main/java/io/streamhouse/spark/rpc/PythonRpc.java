package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.SparkErrors;
import io.streamhouse.spark.util.WeightedLruCache;
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
 * Spark's planner worker, which is reused, and costs about 20 ms. An answer with {@link CacheValidators} is given again
 * while
 * these hold: a query of a table that did not change asks Python nothing.
 */
public class PythonRpc {
  public static final String SOURCE_NAME = "streamhouse";
  private static final long CACHE_CHARS_MAX = 4 << 20;

  /** While the worker begins, calls take turns: Spark would start another worker for a call beside it. */
  static final ReentrantLock WARM_UP_LOCK = new ReentrantLock(true);

  private static volatile Thread warmUpThread;

  private final Map<String, String> settings;
  private final WeightedLruCache<CacheValidators> cachedAnswers = new WeightedLruCache<>(CACHE_CHARS_MAX);
  private final WeightedLruCache<PythonPartitions> cachedPartitions = new WeightedLruCache<>(CACHE_CHARS_MAX);
  /** Whether Spark looks for the data source: where its Python has no such module, it says so in its own words. */
  private volatile boolean usesLookup;

  public PythonRpc(Map<String, String> settings) {
    this.settings = new HashMap<>(settings);
  }

  /** Calls of the data source that Spark has found for the user by its name. */
  public static PythonRpc forUserSource(Map<String, String> settings) {
    PythonRpc rpc = new PythonRpc(settings);
    rpc.usesLookup = true;
    return rpc;
  }

  /**
   * Has Spark start the worker of calls, and that load modules, while the caller goes on. Where this fails, the first
   * call does too, and tells why.
   */
  public Thread warmUp() {
    Thread thread = new Thread(() -> loadParts("reads", "lakes"), "streamhouse-begin");
    thread.setDaemon(true);
    thread.setUncaughtExceptionHandler((failedThread, error) -> {});
    warmUpThread = thread;
    thread.start();
    return thread;
  }

  private void loadParts(String... parts) {
    for (String part : parts) this.call("begin", Json.object().put("part", part));
  }

  /** The package's own data source. */
  public PythonDataSourceV2 dataSource() {
    PythonDataSourceV2 source = usesLookup ? new PythonDataSourceV2() : new StreamhouseSource();
    source.setShortName(SOURCE_NAME);
    return source;
  }

  /** Settings of the catalog, with those of a query or a call. The caller may change the map. */
  public Map<String, String> mergeOptions(Map<String, String> extraOptions) {
    Map<String, String> options = new HashMap<>(settings);
    options.putAll(extraOptions);
    return options;
  }

  /** The session's settings of Hadoop. */
  Configuration hadoopConfiguration() {
    return HadoopFileSystems.hadoopConfiguration();
  }

  /** A setting of the catalog, by its name in any case. It may be a secret. */
  String setting(String name) {
    return new CaseInsensitiveStringMap(settings).get(name);
  }

  /** The options of a call. */
  static Map<String, String> callOptions(String operation, String arguments) {
    return Map.of(InternalOptions.CALL, operation, InternalOptions.ARGUMENTS, arguments);
  }

  /**
   * Python's answer. An error is an AnalysisException with Python's text. The conditions that the caller handles are
   * thrown as {@link MappedException}.
   */
  public JsonNode call(String operation, ObjectNode arguments, String... handled) {
    String json = arguments.toString();
    String call = operation + json;
    CacheValidators cached = cachedAnswers.get(call);
    if (cached != null && cached.areValid(this)) return cached.answer;
    long sinceNs = System.nanoTime();
    String text = invoke(operation, json);
    JsonNode answer = parseReply(text, handled);
    CacheValidators validators = CacheValidators.of(answer, sinceNs);
    if (validators != null) cachedAnswers.put(call, validators, text.length());
    return answer;
  }

  /** Python's reply as text. */
  String invoke(String operation, String arguments) {
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(mergeOptions(callOptions(operation, arguments)));
    if (warmUpThread == null || !warmUpThread.isAlive()) return invoke(options);
    WARM_UP_LOCK.lock();
    try {
      return invoke(options);
    } finally {
      WARM_UP_LOCK.unlock();
    }
  }

  /** The one call of Python here. */
  String invoke(CaseInsensitiveStringMap options) {
    try {
      return dataSource().inferSchema(options).fields()[0].metadata().getString("json");
    } catch (Exception | LinkageError error) {
      if (usesLookup || !StreamhouseSource.isMissingModule(error)) throw error;
      usesLookup = true;
      return invoke(options);
    }
  }

  /** The partitions and the reader of a plan that Python made, by its text: Spark asks Python for them. */
  public PythonPartitions partitions(String text) {
    return partitions("read", text);
  }

  /** What Python reads by another operation than that of plans, {@code read}. */
  public PythonPartitions partitions(String operation, String text) {
    String key = operation + text;
    PythonPartitions cached = cachedPartitions.get(key);
    if (cached != null) return cached;
    PythonPartitions fresh = planPartitions(operation, text);
    cachedPartitions.put(key, fresh, text.length());
    return fresh;
  }

  /** The same, asked anew. */
  public PythonPartitions planPartitions(String operation, String text) {
    Map<String, String> options = mergeOptions(callOptions(operation, text));
    StructType batches = new StructType().add("batch", DataTypes.BinaryType, true);
    SupportsRead table = (SupportsRead) dataSource().getTable(batches, new Transform[0], options);
    Batch batch = table.newScanBuilder(new CaseInsensitiveStringMap(options)).build().toBatch();
    return new PythonPartitions(batch.planInputPartitions(), batch.createReaderFactory());
  }

  /** Asks Python again for all that is asked from now on. */
  public void invalidate() {
    cachedAnswers.clear();
    cachedPartitions.clear();
  }

  /** The answer in a reply. */
  public static JsonNode parseReply(String text, String... handled) {
    JsonNode reply = Json.parse(text);
    if (!reply.has("error")) return reply.get("ok");
    String condition = reply.get("error").get("condition").asText();
    String message = reply.get("error").get("message").asText();
    if (Arrays.asList(handled).contains(condition)) throw new MappedException(condition, message);
    throw SparkErrors.analysisException(message);
  }
}
