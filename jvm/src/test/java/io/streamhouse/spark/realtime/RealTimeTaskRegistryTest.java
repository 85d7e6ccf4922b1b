package io.streamhouse.spark.realtime;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class RealTimeTaskRegistryTest {
  public static final class Query {
    private boolean isActive = true;

    public boolean isActive() {
      return isActive;
    }
  }

  @Test
  void tasksOfEarlierRunningQueriesAreCounted() {
    Query first = new Query();
    Query second = new Query();
    Query third = new Query();
    assertEquals(0, RealTimeTaskRegistry.registerAndCountEarlier(first, 2));
    assertEquals(2, RealTimeTaskRegistry.registerAndCountEarlier(second, 1));
    assertEquals(3, RealTimeTaskRegistry.registerAndCountEarlier(third, 5));
    assertEquals(0, RealTimeTaskRegistry.registerAndCountEarlier(first, 4));
    assertEquals(5, RealTimeTaskRegistry.registerAndCountEarlier(third, 5));
    second.isActive = false;
    assertEquals(4, RealTimeTaskRegistry.registerAndCountEarlier(third, 5));
    first.isActive = false;
    assertEquals(0, RealTimeTaskRegistry.registerAndCountEarlier(third, 5));
    third.isActive = false;
  }

  @Test
  void unknownQueriesAreNotCounted() {
    Query query = new Query();
    RealTimeTaskRegistry.registerAndCountEarlier("no query", 7);
    assertEquals(0, RealTimeTaskRegistry.registerAndCountEarlier(query, 1));
    query.isActive = false;
  }
}
