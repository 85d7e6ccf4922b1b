package io.streamhouse.spark;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/** Values by a text, each with its weight, of a bounded weight in all: the least recently used leave first. */
final class Kept<V> {
  private final long weightMax;
  private final Map<String, Map.Entry<V, Long>> values = new LinkedHashMap<>(16, 0.75f, true);
  private long weight;

  Kept(long weightMax) {
    this.weightMax = weightMax;
  }

  /** Gives null if there is none. */
  synchronized V find(String key) {
    Map.Entry<V, Long> found = values.get(key);
    return found == null ? null : found.getKey();
  }

  /** A value that weighs more than all may is not kept. The key's own length counts too. */
  synchronized void keep(String key, V value, long ofValue) {
    forget(key);
    long more = ofValue + key.length();
    if (more > weightMax) return;
    values.put(key, Map.entry(value, more));
    weight += more;
    Iterator<Map.Entry<V, Long>> oldest = values.values().iterator();
    while (weight > weightMax) {
      weight -= oldest.next().getValue();
      oldest.remove();
    }
  }

  synchronized void forget(String key) {
    Map.Entry<V, Long> gone = values.remove(key);
    if (gone != null) weight -= gone.getValue();
  }

  synchronized void clear() {
    values.clear();
    weight = 0;
  }
}
