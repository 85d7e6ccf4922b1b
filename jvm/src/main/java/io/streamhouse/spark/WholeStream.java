package io.streamhouse.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.StructType;

/** A stream of a table as Spark knows it, of which each batch may read less, by a {@link PrunedStream}. */
interface WholeStream extends MicroBatchStream {
  /** The name of the table. */
  String name();

  /** The columns that Spark knows, by their places: the table's and the hidden ones. */
  StructType schema();

  /** The parts of a batch with the columns and the rows that a query needs; without an end in real-time mode. */
  InputPartition[] planned(Offset start, Offset end, ObjectNode need);

  /** The reader of planned parts. */
  PartitionReaderFactory readers(StructType required);

  /** Whether the reader gives columns or rows. */
  ColumnarSupportMode columns();
}
