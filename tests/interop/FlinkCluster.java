import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.table.gateway.SqlGateway;

/** A cluster of Flink on loopback with its SQL gateway, all in this process, until it is ended. */
public final class FlinkCluster {
  /** Reads the settings of both from the folder FLINK_CONF_DIR. */
  public static void main(String[] arguments) throws Exception {
    Configuration settings = GlobalConfiguration.loadConfiguration();
    MiniClusterConfiguration cluster =
        new MiniClusterConfiguration.Builder()
            .setConfiguration(settings)
            .setNumTaskManagers(1)
            .setNumSlotsPerTaskManager(8)
            .build();
    new MiniCluster(cluster).start();
    try {
      SqlGateway.main(new String[0]);
    } finally {
      System.exit(1); // threads of the cluster would keep the process
    }
  }
}
