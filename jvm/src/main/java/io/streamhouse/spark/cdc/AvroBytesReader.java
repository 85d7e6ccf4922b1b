package io.streamhouse.spark.cdc;

import java.io.EOFException;
import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * Reads the bytes of one event with Avro's decoder.
 *
 *
 * <p>Sizes in corrupt bytes are checked before memory is allocated: no value is larger than the remaining bytes.
 */
final class AvroBytesReader {
  private final BinaryDecoder decoder;

  AvroBytesReader(byte[] bytes, int begin) {
    decoder = DecoderFactory.get().binaryDecoder(bytes, begin, bytes.length - begin, null);
  }

  BinaryDecoder decoder() {
    return decoder;
  }

  /** Returns the number of remaining bytes. */
  int remaining() throws IOException {
    return decoder.inputStream().available();
  }

  byte[] readBytes() throws IOException {
    return readBytes(decoder.readLong());
  }

  /** Reads a string. Invalid UTF-8 is an error and is not replaced. */
  String readString() throws IOException {
    byte[] bytes = readBytes();
    String text = new String(bytes, StandardCharsets.UTF_8);
    if (text.indexOf('\uFFFD') >= 0 && !Arrays.equals(bytes, text.getBytes(StandardCharsets.UTF_8))) {
      throw new CharacterCodingException();
    }
    return text;
  }

  byte[] readBytes(long size) throws IOException {
    byte[] bytes = new byte[(int) checkSize(size, "a value")];
    decoder.readFixed(bytes, 0, bytes.length);
    return bytes;
  }

  /** Checks the number of items of a collection, of which each has at least one byte. */
  long checkItemCount(long count) throws IOException {
    return checkSize(count, "a list");
  }

  private long checkSize(long size, String description) throws IOException {
    int remaining = remaining();
    if (size < 0 || size > remaining) {
      throw new EOFException(description + " of " + size + " where " + remaining + " bytes are left");
    }
    return size;
  }
}
