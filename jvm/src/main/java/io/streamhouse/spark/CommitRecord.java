package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;

/** A record of a table's commit log, as far as a reader of its rows needs it. */
final class CommitRecord {
  private static final int NEWEST_VERSION = 2;
  private static final int MANIFEST_VERSION = 1;

  final long number;
  final JsonNode header;
  final JsonNode actions;

  /** The file that has the actions and their bytes: the record, or its manifest. */
  final Frame body;

  private CommitRecord(long number, JsonNode header, Frame body) {
    this.number = number;
    this.header = header;
    this.body = body;
    this.actions = body.header.get("actions");
  }

  /** The name of a record below the table's folder. */
  static String name(long number) {
    return String.format("commits/%020d.json", number);
  }

  /**
   * The record in these bytes, if there are any. Null for a record that is not this table's, is damaged, or newer than
   * this class: Python says what is wrong.
   */
  static CommitRecord of(byte[] bytes, LogFiles files, String uuid, long number) throws IOException {
    Frame frame = bytes == null ? null : Frame.decode(bytes, "commit", NEWEST_VERSION);
    if (frame == null) return null;
    JsonNode header = frame.header;
    if (header.get("number").asLong() != number || !header.get("table").asText().equals(uuid)) return null;
    JsonNode named = header.get("manifest");
    Frame body = named == null ? frame : manifest(files, named);
    return body == null ? null : new CommitRecord(number, header, body);
  }

  private static Frame manifest(LogFiles files, JsonNode named) throws IOException {
    byte[] bytes = files.read("manifests/" + named.get("uuid").asText() + ".json");
    if (bytes == null || bytes.length != named.get("bytes").asInt() || bytes.length <= Xxh3.MIDDLE_MIN) return null;
    if (!Xxh3.hex128(bytes, 0, bytes.length).equals(named.get("xxh3").asText())) return null;
    return Frame.decode(bytes, "manifest", MANIFEST_VERSION);
  }

  String attempt() {
    return header.get("attempt").asText();
  }

  /** Whether the record may be behind the one of this attempt: most say which one they follow. */
  boolean follows(String attempt) {
    return !header.has("after") || attempt == null || header.get("after").asText().equals(attempt);
  }
}
