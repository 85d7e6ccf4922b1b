package io.streamhouse.spark;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class RealTimeTasksTest {
  public static final class Query {
    private boolean isActive = true;

    public boolean isActive() {
      return isActive;
    }
  }

  @Test
  void aQueryIsToldOfTheTasksOfThoseThatBeganBeforeItAndRun() {
    Query first = new Query();
    Query second = new Query();
    Query third = new Query();
    assertEquals(0, RealTimeTasks.before(first, 2));
    assertEquals(2, RealTimeTasks.before(second, 1));
    assertEquals(3, RealTimeTasks.before(third, 5));
    assertEquals(0, RealTimeTasks.before(first, 4));
    assertEquals(5, RealTimeTasks.before(third, 5));
    second.isActive = false;
    assertEquals(4, RealTimeTasks.before(third, 5));
    first.isActive = false;
    assertEquals(0, RealTimeTasks.before(third, 5));
    third.isActive = false;
  }

  @Test
  void whatIsNoQueryOfSparkIsNotCounted() {
    Query query = new Query();
    RealTimeTasks.before("no query", 7);
    assertEquals(0, RealTimeTasks.before(query, 1));
    query.isActive = false;
  }
}
