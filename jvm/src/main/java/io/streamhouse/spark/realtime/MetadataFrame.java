package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.util.Xxh3;
import java.nio.charset.StandardCharsets;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A verified metadata file of a log: a line with kind, version and checksum, a line of JSON, and a binary payload. */
final class MetadataFrame {
  private static final Pattern FIRST_LINE =
      Pattern.compile("\\{\"streamhouse\":\"([a-z]+)\",\"version\":(\\d{1,9}),\"xxh3\":\"([0-9a-f]{32})\"\\}\n");
  private static final int FIRST_LINE_MAX = 120;

  final JsonNode header;
  final byte[] bytes;

  /** The offset of the payload. */
  final int payload;

  private MetadataFrame(JsonNode header, byte[] bytes, int payload) {
    this.header = header;
    this.bytes = bytes;
    this.payload = payload;
  }

  /**
   * Decodes a file, or returns null if it is damaged, of another kind or of a newer version. Python then reports why.
   */
  static MetadataFrame decode(byte[] bytes, String kind, int newest) {
    String begin = new String(bytes, 0, Math.min(bytes.length, FIRST_LINE_MAX), StandardCharsets.ISO_8859_1);
    Matcher first = FIRST_LINE.matcher(begin);
    if (!first.lookingAt() || !first.group(1).equals(kind)) return null;
    int version = Integer.parseInt(first.group(2));
    int from = first.end();
    if (version < 1 || version > newest || bytes.length - from <= Xxh3.MIDDLE_MIN) return null;
    if (!Xxh3.hex128(bytes, from, bytes.length - from).equals(first.group(3))) return null;
    int end = from;
    while (bytes[end] != '\n') end++;
    return new MetadataFrame(Json.parse(new String(bytes, from, end - from, StandardCharsets.UTF_8)), bytes, end + 1);
  }
}
