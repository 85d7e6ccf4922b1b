package io.streamhouse.spark.util;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/** An LRU cache of bounded total weight. */
public final class WeightedLruCache<V> {
  private final long weightMax;
  private final Map<String, Map.Entry<V, Long>> values = new LinkedHashMap<>(16, 0.75f, true);
  private long weight;

  public WeightedLruCache(long weightMax) {
    this.weightMax = weightMax;
  }

  /** Returns the value, or null. */
  public synchronized V get(String key) {
    Map.Entry<V, Long> entry = values.get(key);
    return entry == null ? null : entry.getKey();
  }

  /** Adds a value. The key's length counts towards its weight. A value heavier than the whole cache is not added. */
  public synchronized void put(String key, V value, long valueWeight) {
    remove(key);
    long entryWeight = valueWeight + key.length();
    if (entryWeight > weightMax) return;
    values.put(key, Map.entry(value, entryWeight));
    weight += entryWeight;
    Iterator<Map.Entry<V, Long>> oldest = values.values().iterator();
    while (weight > weightMax) {
      weight -= oldest.next().getValue();
      oldest.remove();
    }
  }

  public synchronized void remove(String key) {
    Map.Entry<V, Long> entry = values.remove(key);
    if (entry != null) weight -= entry.getValue();
  }

  public synchronized void clear() {
    values.clear();
    weight = 0;
  }
}
