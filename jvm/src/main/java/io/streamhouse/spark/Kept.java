package io.streamhouse.spark;

import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;

/** Values by a text, of a bounded weight in all: the least recently used leave first. */
final class Kept<V> {
  private final long weightMax;
  private final Map<String, Weighed<V>> values = new LinkedHashMap<>(16, 0.75f, true);
  private long weight;

  Kept(long weightMax) {
    this.weightMax = weightMax;
  }

  private static final class Weighed<V> {
    final V value;
    final long weight;

    Weighed(V value, long weight) {
      this.value = value;
      this.weight = weight;
    }
  }

  /** Gives null if there is none. */
  synchronized V find(String key) {
    Weighed<V> found = values.get(key);
    return found == null ? null : found.value;
  }

  /** A value that weighs more than all may is not kept. The key's own length counts too. */
  synchronized void keep(String key, V value, long ofValue) {
    forget(key);
    Weighed<V> kept = new Weighed<>(value, ofValue + key.length());
    if (kept.weight > weightMax) return;
    values.put(key, kept);
    weight += kept.weight;
    Iterator<Weighed<V>> oldest = values.values().iterator();
    while (weight > weightMax) {
      weight -= oldest.next().weight;
      oldest.remove();
    }
  }

  synchronized void forget(String key) {
    Weighed<V> gone = values.remove(key);
    if (gone != null) weight -= gone.weight;
  }

  synchronized void clear() {
    values.clear();
    weight = 0;
  }
}
