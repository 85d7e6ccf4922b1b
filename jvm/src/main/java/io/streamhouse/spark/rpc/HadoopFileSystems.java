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

/** The file systems of the session. Python chooses among them, and names their settings; secrets are added here. */
public final class HadoopFileSystems {
  /** Those whose settings Python knows. */
  private static final Map<String, String> NATIVE_CLASSES =
      Map.of("s3a", ".S3AFileSystem", "abfss", "AzureBlobFileSystem");

  private HadoopFileSystems() {}

  /** The session's settings of Hadoop. */
  public static Configuration hadoopConfiguration() {
    return SparkSession.active().sparkContext().hadoopConfiguration();
  }

  /** Says in a request which file systems there are, whose gs is, and for which version of Hadoop others have to be. */
  public static void addNativeSchemes(ObjectNode request, Configuration session) {
    ArrayNode schemes = request.putArray("native_schemes").add("file");
    for (String scheme : new String[] {"s3a", "gs", "abfss", "hdfs"}) {
      String className = fileSystemClass(scheme, session);
      if (className.endsWith(NATIVE_CLASSES.getOrDefault(scheme, "")) && !className.isEmpty()) schemes.add(scheme);
      if (className.startsWith("com.google.cloud.hadoop.")) schemes.add("gcs-connector");
    }
    request.put("hadoop_version", VersionInfo.getVersion());
  }

  /** The name of a file system's class; empty where there is none. */
  private static String fileSystemClass(String scheme, Configuration session) {
    try {
      return FileSystem.getFileSystemClass(scheme, session).getName();
    } catch (Exception | LinkageError error) {
      return "";
    }
  }

  /** Adds the settings of file systems, which go to the tasks that read and are part of no plan. */
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
