package io.streamhouse.spark.rpc;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.streamhouse.spark.util.Json;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;

class PythonRpcWarmUpTest {
  private final List<String> requests = Collections.synchronizedList(new ArrayList<>());
  private final CountDownLatch isLoaded = new CountDownLatch(1);

  private final PythonRpc python =
      new PythonRpc(Map.of()) {
        @Override
        String invoke(CaseInsensitiveStringMap all) {
          String arguments = all.get(InternalOptions.ARGUMENTS);
          requests.add(all.get(InternalOptions.CALL) + arguments);
          if (arguments.contains("reads")) await(isLoaded);
          return "{\"ok\":{}}";
        }
      };

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  @Test
  void aCallDuringWarmUpIsNextAndAlone() throws InterruptedException {
    Thread beginning = python.warmUp();
    while (requests.isEmpty()) Thread.sleep(1);
    Thread query = new Thread(() -> python.call("load", Json.object()));
    query.start();
    while (!PythonRpc.WARM_UP_LOCK.hasQueuedThread(query)) Thread.sleep(1);
    isLoaded.countDown();
    query.join();
    beginning.join();
    assertEquals(List.of("begin{\"part\":\"reads\"}", "load{}", "begin{\"part\":\"lakes\"}"), requests);
  }
}
