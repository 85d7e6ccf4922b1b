package io.streamhouse.spark;

import java.lang.ref.WeakReference;
import org.apache.spark.sql.catalyst.analysis.AnalysisContext;

/** One of Spark's analyses, which asked for tables. Spark asks for them again when it runs what was analyzed. */
final class Analysis {
  private static final ThreadLocal<Analysis> LAST = new ThreadLocal<>();
  private final WeakReference<Object> relations;
  private long askedNs;

  private Analysis(Object relations) {
    this.relations = new WeakReference<>(relations);
  }

  /** The analysis for which this thread has just asked for a table. */
  static Analysis asked() {
    Object relations = AnalysisContext.get().relationCache(); // each analysis has its own
    Analysis last = LAST.get();
    if (last == null || last.relations.get() != relations) LAST.set(last = new Analysis(relations));
    last.askedNs = System.nanoTime();
    return last;
  }

  /** Whether this thread asked for tables for no analysis since, and less time ago. */
  boolean isNewerThan(long ageNs) {
    return LAST.get() == this && System.nanoTime() - askedNs < ageNs;
  }

  /** Whether Spark asks because it begins to run what it has analyzed before. */
  static boolean isOver() {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> frame.getClassName().contains("V2TableRefreshUtil")));
  }
}
