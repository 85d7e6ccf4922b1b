package io.streamhouse.spark.cdc;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;

/** Reads values of one Avro type and writes them as JSON. */
interface AvroJsonConverter {
  void convert(AvroBytesReader in, JsonGenerator out) throws IOException;
}
