package io.streamhouse.spark.rpc;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.function.BiConsumer;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.util.VersionInfo;
import org.apache.spark.sql.SparkSession;

/** The file systems of the session. Python chooses among them and names their settings. Secrets are added here. */
public final class HadoopFileSystems {
  /** File system classes whose settings Python knows. */
  private static final Map<String, String> NATIVE_CLASSES =
      Map.of("s3a", ".S3AFileSystem", "abfss", "AzureBlobFileSystem");

  private HadoopFileSystems() {}

  /** Returns the Hadoop configuration of the session. */
  public static Configuration hadoopConfiguration() {
    return SparkSession.active().sparkContext().hadoopConfiguration();
  }

  /** Adds the available file systems to a request, whether gs is Google's connector, and the version of Hadoop. */
  public static void addNativeSchemes(ObjectNode request, Configuration session) {
    ArrayNode schemes = request.putArray("native_schemes").add("file");
    for (String scheme : new String[] {"s3a", "gs", "abfss", "hdfs"}) {
      String className = fileSystemClass(scheme, session);
      if (className.endsWith(NATIVE_CLASSES.getOrDefault(scheme, "")) && !className.isEmpty()) schemes.add(scheme);
      if (className.startsWith("com.google.cloud.hadoop.")) schemes.add("gcs-connector");
    }
    request.put("hadoop_version", VersionInfo.getVersion());
  }

  /** Returns the name of a file system's class, or an empty string if there is none. */
  private static String fileSystemClass(String scheme, Configuration session) {
    try {
      return FileSystem.getFileSystemClass(scheme, session).getName();
    } catch (Exception | LinkageError error) {
      return "";
    }
  }

  /** Passes the settings of the chosen file systems to a reader. They go to its tasks and are not part of the plan. */
  public static void configure(
      JsonNode entries, PythonRpc python, Configuration session, BiConsumer<String, String> reader) {
    for (JsonNode entry : entries) {
      String key = entry.get("key").asText();
      String[] sources = entry.get("is_default").asBoolean() ? session.getPropertySources(key) : null;
      if (sources != null && !sources[0].equals("core-default.xml")) continue;
      JsonNode setting = entry.get("setting");
      reader.accept(key, setting.isNull() ? entry.get("value").asText() : python.setting(setting.asText()));
    }
  }
}
