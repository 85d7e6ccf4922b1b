package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;

/** Reads the values of one Avro type and writes them as JSON. */
interface AvroValue {
  void write(AvroBytes in, JsonGenerator out) throws IOException;
}
