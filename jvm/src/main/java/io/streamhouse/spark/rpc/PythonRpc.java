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
 * Calls operations of Python with the settings of one catalog.
 *
 *
 * <p>A call is a schema inference of the data source {@code streamhouse} with two options: the operation and its
 * arguments as JSON. The answer is JSON in the metadata of the only field of the inferred schema. It runs in Spark's
 * planner worker, which is reused, and takes about 20 ms. An answer with {@link CacheValidators} is cached while they
 * are valid, so a query of an unchanged table does not call Python.
 */
public class PythonRpc {
  public static final String SOURCE_NAME = "streamhouse";
  private static final long CACHE_CHARS_MAX = 4 << 20;

  /** Calls are serialized while the worker starts, since Spark would start a second worker for a concurrent call. */
  static final ReentrantLock WARM_UP_LOCK = new ReentrantLock(true);

  private static volatile Thread warmUpThread;

  private final Map<String, String> settings;
  private final WeightedLruCache<CacheValidators> cachedAnswers = new WeightedLruCache<>(CACHE_CHARS_MAX);
  private final WeightedLruCache<PythonPartitions> cachedPartitions = new WeightedLruCache<>(CACHE_CHARS_MAX);
  /**
   * Whether Spark looks up the data source by name. It then reports in its own words if Python does not have the
   * module.
   */
  private volatile boolean usesLookup;

  public PythonRpc(Map<String, String> settings) {
    this.settings = new HashMap<>(settings);
  }

  /** Returns calls for a data source that the user named and Spark has looked up. */
  public static PythonRpc forUserSource(Map<String, String> settings) {
    PythonRpc rpc = new PythonRpc(settings);
    rpc.usesLookup = true;
    return rpc;
  }

  /**
   * Starts the planner worker and loads its modules in the background. If this fails, the first call fails as well and
   * reports why.
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
    for (String part : parts) this.call("warm_up", Json.object().put("part", part));
  }

  /** Returns the connector's data source. */
  public PythonDataSourceV2 dataSource() {
    PythonDataSourceV2 source = usesLookup ? new PythonDataSourceV2() : new StreamhouseSource();
    source.setShortName(SOURCE_NAME);
    return source;
  }

  /**
   * Returns the settings of the catalog, overridden by the options of a query or call. The caller may modify the map.
   */
  public Map<String, String> mergeOptions(Map<String, String> extraOptions) {
    Map<String, String> options = new HashMap<>(settings);
    options.putAll(extraOptions);
    return options;
  }

  /** Returns the Hadoop configuration of the session. Tests override it. */
  Configuration hadoopConfiguration() {
    return HadoopFileSystems.hadoopConfiguration();
  }

  /** Returns a setting of the catalog by its case-insensitive name. It may be a secret. */
  String setting(String name) {
    return new CaseInsensitiveStringMap(settings).get(name);
  }

  /** Returns the options of a call. */
  static Map<String, String> callOptions(String operation, String arguments) {
    return Map.of(InternalOptions.CALL, operation, InternalOptions.ARGUMENTS, arguments);
  }

  /**
   * Calls an operation and returns its answer. An error becomes an AnalysisException with Python's message, or a {@link
   * MappedException} if its condition is in {@code handled}.
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

  /** Calls an operation and returns the reply as text. */
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

  /** Calls Python. All calls end here. */
  String invoke(CaseInsensitiveStringMap options) {
    try {
      return dataSource().inferSchema(options).fields()[0].metadata().getString("json");
    } catch (Exception | LinkageError error) {
      if (usesLookup || !StreamhouseSource.isMissingModule(error)) throw error;
      usesLookup = true;
      return invoke(options);
    }
  }

  /** Returns the partitions of a plan that Python made. They are cached by the text of the plan. */
  public PythonPartitions partitions(String text) {
    return partitions("read", text);
  }

  /** Returns the partitions of an operation other than {@code read}. */
  public PythonPartitions partitions(String operation, String text) {
    String key = operation + text;
    PythonPartitions cached = cachedPartitions.get(key);
    if (cached != null) return cached;
    PythonPartitions fresh = planPartitions(operation, text);
    cachedPartitions.put(key, fresh, text.length());
    return fresh;
  }

  /** Plans partitions without the cache. */
  public PythonPartitions planPartitions(String operation, String text) {
    Map<String, String> options = mergeOptions(callOptions(operation, text));
    StructType batches = new StructType().add("batch", DataTypes.BinaryType, true);
    SupportsRead table = (SupportsRead) dataSource().getTable(batches, new Transform[0], options);
    Batch batch = table.newScanBuilder(new CaseInsensitiveStringMap(options)).build().toBatch();
    return new PythonPartitions(batch.planInputPartitions(), batch.createReaderFactory());
  }

  /** Invalidates all cached answers and partitions. */
  public void invalidate() {
    cachedAnswers.clear();
    cachedPartitions.clear();
  }

  /** Returns the answer in a reply, or throws its error. */
  public static JsonNode parseReply(String text, String... handled) {
    JsonNode reply = Json.parse(text);
    if (!reply.has("error")) return reply.get("ok");
    String condition = reply.get("error").get("condition").asText();
    String message = reply.get("error").get("message").asText();
    if (Arrays.asList(handled).contains(condition)) throw new MappedException(condition, message);
    throw SparkErrors.analysisException(message);
  }
}
