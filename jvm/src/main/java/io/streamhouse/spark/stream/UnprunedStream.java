package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.StructType;

/** The stream of a table as Spark knows it, of which a {@link PushdownStream} may read less. */
public interface UnprunedStream extends MicroBatchStream {
  /** Returns the name of the table. */
  String tableName();

  /** Returns the columns by position: those of the table, then the metadata columns. */
  StructType schema();

  /** Plans a batch with the required columns and filters. {@code end} is null in real-time mode. */
  InputPartition[] planPartitions(Offset start, Offset end, ObjectNode requirement);

  /** Creates the factory that reads the planned partitions. */
  PartitionReaderFactory createReaderFactory(StructType required);

  /** Returns whether the reader is columnar. */
  ColumnarSupportMode columnarSupport();
}
