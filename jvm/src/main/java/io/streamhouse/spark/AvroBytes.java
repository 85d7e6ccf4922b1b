package io.streamhouse.spark;

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
final class AvroBytes {
  private final BinaryDecoder decoder;

  AvroBytes(byte[] bytes, int begin) {
    decoder = DecoderFactory.get().binaryDecoder(bytes, begin, bytes.length - begin, null);
  }

  BinaryDecoder decoder() {
    return decoder;
  }

  /** How many bytes are left. */
  int left() throws IOException {
    return decoder.inputStream().available();
  }

  byte[] value() throws IOException {
    return value(decoder.readLong());
  }

  /** A text. Bytes that are none are damage, and not replaced. */
  String text() throws IOException {
    byte[] found = value();
    String text = new String(found, StandardCharsets.UTF_8);
    if (text.indexOf('\uFFFD') >= 0 && !Arrays.equals(found, text.getBytes(StandardCharsets.UTF_8))) {
      throw new CharacterCodingException();
    }
    return text;
  }

  byte[] value(long size) throws IOException {
    byte[] found = new byte[(int) fitting(size, "a value")];
    decoder.readFixed(found, 0, found.length);
    return found;
  }

  /** A number of items, each of at least one byte in what events hold. */
  long items(long count) throws IOException {
    return fitting(count, "a list");
  }

  private long fitting(long size, String what) throws IOException {
    int left = left();
    if (size < 0 || size > left) throw new EOFException(what + " of " + size + " where " + left + " bytes are left");
    return size;
  }
}
