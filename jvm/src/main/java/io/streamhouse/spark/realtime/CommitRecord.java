package io.streamhouse.spark.realtime;

import com.fasterxml.jackson.databind.JsonNode;
import io.streamhouse.spark.storage.LogStore;
import io.streamhouse.spark.util.Xxh3;
import java.io.IOException;

/** A commit record of a table's log, as far as a reader of its rows needs it. */
final class CommitRecord {
  private static final int VERSION_MAX = 2;
  private static final int MANIFEST_VERSION_MAX = 1;

  final long number;
  final JsonNode header;
  final JsonNode actions;

  /** The file that contains the actions and inline bytes: the record itself or its manifest. */
  final MetadataFrame body;

  private CommitRecord(long number, JsonNode header, MetadataFrame body) {
    this.number = number;
    this.header = header;
    this.body = body;
    this.actions = body.header.get("actions");
  }

  /** Returns the name of a record below the table's folder. */
  static String fileName(long number) {
    return String.format("commits/%020d.json", number);
  }

  /**
   * Decodes a record. Returns null if {@code bytes} is null, or the record is damaged, newer than this class or of
   * another table. Python then reports what is wrong.
   */
  static CommitRecord decode(byte[] bytes, LogStore store, String uuid, long number) throws IOException {
    MetadataFrame frame = bytes == null ? null : MetadataFrame.decode(bytes, "commit", VERSION_MAX);
    if (frame == null) return null;
    JsonNode header = frame.header;
    if (header.get("number").asLong() != number || !header.get("table").asText().equals(uuid)) return null;
    JsonNode manifest = header.get("manifest");
    MetadataFrame body = manifest == null ? frame : readManifest(store, manifest);
    return body == null ? null : new CommitRecord(number, header, body);
  }

  private static MetadataFrame readManifest(LogStore store, JsonNode manifest) throws IOException {
    byte[] bytes = store.read("manifests/" + manifest.get("uuid").asText() + ".json");
    if (bytes == null || bytes.length != manifest.get("bytes").asInt() || bytes.length <= Xxh3.MIDDLE_MIN) return null;
    if (!Xxh3.hex128(bytes, 0, bytes.length).equals(manifest.get("xxh3").asText())) return null;
    return MetadataFrame.decode(bytes, "manifest", MANIFEST_VERSION_MAX);
  }

  String attempt() {
    return header.get("attempt").asText();
  }

  /** Returns whether this record may follow the one of {@code attempt}. Most records name their predecessor. */
  boolean follows(String attempt) {
    return !header.has("after") || attempt == null || header.get("after").asText().equals(attempt);
  }
}
