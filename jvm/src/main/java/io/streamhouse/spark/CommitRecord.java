package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

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

  static Path path(Path folder, long number) {
    return folder.resolve("commits").resolve(String.format("%020d.json", number));
  }

  /** Null for a record that is not this table's, is damaged, or newer than this class: Python says what is wrong. */
  static CommitRecord read(Path folder, String uuid, long number) throws IOException {
    Frame frame = Frame.decode(Files.readAllBytes(path(folder, number)), "commit", NEWEST_VERSION);
    if (frame == null) return null;
    JsonNode header = frame.header;
    if (header.get("number").asLong() != number || !header.get("table").asText().equals(uuid)) return null;
    JsonNode named = header.get("manifest");
    Frame body = named == null ? frame : manifest(folder, named);
    return body == null ? null : new CommitRecord(number, header, body);
  }

  private static Frame manifest(Path folder, JsonNode named) throws IOException {
    byte[] bytes;
    try {
      bytes = Files.readAllBytes(folder.resolve("manifests").resolve(named.get("uuid").asText() + ".json"));
    } catch (NoSuchFileException missing) {
      return null;
    }
    if (bytes.length != named.get("bytes").asInt() || bytes.length <= Xxh3.MIDDLE_MIN) return null;
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
