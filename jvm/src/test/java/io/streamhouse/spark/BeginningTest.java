package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.junit.jupiter.api.Test;

class BeginningTest {
  private final List<String> asked = Collections.synchronizedList(new ArrayList<>());
  private final CountDownLatch isLoaded = new CountDownLatch(1);

  private final PythonCalls python =
      new PythonCalls(Map.of()) {
        @Override
        String reply(CaseInsensitiveStringMap all) {
          String arguments = all.get(InternalOptions.ARGUMENTS);
          asked.add(all.get(InternalOptions.CALL) + arguments);
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
  void aCallThatComesMeanwhileIsNextAndAlone() throws InterruptedException {
    Thread beginning = python.begin();
    while (asked.isEmpty()) Thread.sleep(1);
    Thread query = new Thread(() -> python.ask("load", JsonTree.object()));
    query.start();
    while (!PythonCalls.TURN.hasQueuedThread(query)) Thread.sleep(1);
    isLoaded.countDown();
    query.join();
    beginning.join();
    assertEquals(List.of("begin{\"part\":\"reads\"}", "load{}", "begin{\"part\":\"lakes\"}"), asked);
  }
}
