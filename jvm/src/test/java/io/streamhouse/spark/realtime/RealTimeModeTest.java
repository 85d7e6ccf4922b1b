package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import org.junit.jupiter.api.Test;

class RealTimeModeTest {
  static final class RealTimeTrigger {}

  static final class ProcessingTimeTrigger {}

  /** Like Spark's query, whose thread is an inner class. */
  static final class Query {
    private final Object trigger;

    Query(Object trigger) {
      this.trigger = trigger;
    }

    public Object trigger() {
      return trigger;
    }
  }

  static final class QueryThread extends Thread {
    final Object $outer;

    QueryThread(Object query) {
      this.$outer = query;
    }
  }

  @Test
  void theTriggerOfTheThreadsQueryIsRecognized() {
    assertEquals(true, RealTimeMode.isRealTime(new QueryThread(new Query(new RealTimeTrigger()))));
    assertEquals(false, RealTimeMode.isRealTime(new QueryThread(new Query(new ProcessingTimeTrigger()))));
  }

  @Test
  void aThreadWithoutAQueryIsUnknown() {
    assertNull(RealTimeMode.isRealTime(Thread.currentThread()));
    assertNull(RealTimeMode.isRealTime(new QueryThread("no query")));
  }
}
