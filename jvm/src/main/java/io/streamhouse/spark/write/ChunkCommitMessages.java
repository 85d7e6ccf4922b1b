package io.streamhouse.spark.write;

import java.util.ArrayList;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** The commit messages of all chunks of a task. */
final class ChunkCommitMessages implements WriterCommitMessage {
  private static final long serialVersionUID = 1L;
  final ArrayList<WriterCommitMessage> chunks = new ArrayList<>();
}
