package bench;

import java.io.FileWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.time.Instant;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/** Notes for each row, a number and the moment at which its append began, how old it is when it comes here. */
public final class AgeWriter extends ForeachWriter<Row> {
  private static final long serialVersionUID = 1L;
  private final String folder;
  private transient Writer file;

  public AgeWriter(String folder) {
    this.folder = folder;
  }

  @Override
  public boolean open(long partition, long epoch) {
    try {
      file = new FileWriter(folder + "/" + partition + "-" + epoch + "-" + System.nanoTime());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return true;
  }

  @Override
  public void process(Row row) {
    Instant now = Instant.now();
    long ns = now.getEpochSecond() * 1_000_000_000L + now.getNano();
    try {
      file.write(row.getLong(0) + " " + (ns - row.getLong(1)) / 1e6 + "\n");
      file.flush();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  @Override
  public void close(Throwable cause) {
    try {
      if (file != null) file.close();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
