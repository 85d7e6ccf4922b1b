import java.io.File;
import java.net.InetAddress;
import java.net.ServerSocket;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A NameNode and a DataNode on loopback, until this process is ended. A third port opens when both are ready. */
public final class MiniHdfs {
  /** Arguments: a folder, and three ports: of the NameNode's calls, of its WebHDFS, and the third one. */
  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.setInt("dfs.ls.limit", 7);
    // The end of a file waits so long where its last block was not yet reported: often, with two cores.
    settings.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings, new File(arguments[0]))
            .nameNodePort(Integer.parseInt(arguments[1]))
            .nameNodeHttpPort(Integer.parseInt(arguments[2]))
            .numDataNodes(1)
            .build();
    cluster.waitActive();
    new ServerSocket(Integer.parseInt(arguments[3]), 1, InetAddress.getLoopbackAddress());
    Thread.currentThread().join();
  }
}
