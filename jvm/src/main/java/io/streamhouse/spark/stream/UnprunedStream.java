package io.streamhouse.spark.stream;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.StructType;

/** A stream of a table as Spark knows it, of which each batch may read less, by a {@link PushdownStream}. */
public interface UnprunedStream extends MicroBatchStream {
  /** The name of the table. */
  String tableName();

  /** The columns that Spark knows, by their places: the table's and the hidden ones. */
  StructType schema();

  /** The parts of a batch with the columns and the rows that a query needs; without an end in real-time mode. */
  InputPartition[] planPartitions(Offset start, Offset end, ObjectNode requirement);

  /** The reader of planned parts. */
  PartitionReaderFactory createReaderFactory(StructType required);

  /** Whether the reader gives columns or rows. */
  ColumnarSupportMode columnarSupport();
}
