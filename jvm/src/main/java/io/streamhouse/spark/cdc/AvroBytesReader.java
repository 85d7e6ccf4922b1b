package io.streamhouse.spark.cdc;

import java.io.EOFException;
import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * The bytes of one event, read by Avro's own decoder.
 *
 * <p>Sizes in damaged bytes are looked at before memory is taken for them: no value is larger than what is left.
 */
final class AvroBytesReader {
  private final BinaryDecoder decoder;

  AvroBytesReader(byte[] bytes, int begin) {
    decoder = DecoderFactory.get().binaryDecoder(bytes, begin, bytes.length - begin, null);
  }

  BinaryDecoder decoder() {
    return decoder;
  }

  /** How many bytes are left. */
  int remaining() throws IOException {
    return decoder.inputStream().available();
  }

  byte[] readBytes() throws IOException {
    return readBytes(decoder.readLong());
  }

  /** A text. Bytes that are none are damage, and not replaced. */
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

  /** A number of items, each of at least one byte in what events hold. */
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
