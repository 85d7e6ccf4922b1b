package io.streamhouse.spark.rules;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.streamhouse.spark.SessionExtensions;
import java.util.ArrayList;
import java.util.List;
import java.util.ServiceLoader;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import org.apache.spark.sql.types.StructType;
import org.junit.jupiter.api.Test;

/** Which columns a read of {@code format("streamhouse")} may request from the catalog's table. */
class DataFrameReadTest {
  private static final StructType TABLE =
      StructType.fromDDL("id BIGINT NOT NULL, name STRING, item STRUCT<a: INT, b: STRING>");

  private static boolean isSupported(String requested) {
    return DataFrameRead.supportsSchema(StructType.fromDDL(requested), TABLE);
  }

  @Test
  void columnsAreSupportedInAnyOrder() {
    assertTrue(DataFrameRead.supportsSchema(TABLE, TABLE));
    assertTrue(isSupported("name STRING"));
    assertTrue(isSupported("item STRUCT<a: INT, b: STRING>, id BIGINT NOT NULL"));
  }

  @Test
  void aRequiredColumnMayBeRequestedAsNullable() {
    assertTrue(isSupported("id BIGINT"));
    assertFalse(isSupported("name STRING NOT NULL"));
  }

  @Test
  void anythingElseIsLeftToPython() {
    assertFalse(DataFrameRead.supportsSchema(new StructType(), TABLE));
    assertFalse(isSupported("ID BIGINT"));
    assertFalse(isSupported("id INT"));
    assertFalse(isSupported("name VARCHAR(3)"));
    assertFalse(isSupported("item STRUCT<a: INT>"));
    assertFalse(isSupported("item STRUCT<b: STRING, a: INT>"));
    assertFalse(isSupported("gone STRING"));
    assertFalse(DataFrameRead.supportsSchema(new StructType().add("name", "string").add("name", "string"), TABLE));
  }

  @Test
  void sparkFindsTheExtensionsByTheServiceList() {
    List<String> providers = new ArrayList<>();
    ServiceLoader.load(SparkSessionExtensionsProvider.class)
        .stream()
        .map(service -> service.type().getName())
        .filter(name -> name.startsWith("io.streamhouse."))
        .forEach(providers::add);
    assertEquals(List.of(SessionExtensions.class.getName()), providers);
  }
}
