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

  private static boolean fits(String requested) {
    return DataFrameRead.supportsSchema(StructType.fromDDL(requested), TABLE);
  }

  @Test
  void columnsOfTheTableFitInAnyOrder() {
    assertTrue(DataFrameRead.supportsSchema(TABLE, TABLE));
    assertTrue(fits("name STRING"));
    assertTrue(fits("item STRUCT<a: INT, b: STRING>, id BIGINT NOT NULL"));
  }

  @Test
  void aColumnWithoutNullsMayBeAskedForWithThem() {
    assertTrue(fits("id BIGINT"));
    assertFalse(fits("name STRING NOT NULL"));
  }

  @Test
  void allElseIsLeftToPython() {
    assertFalse(DataFrameRead.supportsSchema(new StructType(), TABLE));
    assertFalse(fits("ID BIGINT"));
    assertFalse(fits("id INT"));
    assertFalse(fits("name VARCHAR(3)"));
    assertFalse(fits("item STRUCT<a: INT>"));
    assertFalse(fits("item STRUCT<b: STRING, a: INT>"));
    assertFalse(fits("gone STRING"));
    assertFalse(DataFrameRead.supportsSchema(new StructType().add("name", "string").add("name", "string"), TABLE));
  }

  @Test
  void sparkFindsTheExtensionsByTheListOfServices() {
    List<String> providers = new ArrayList<>();
    ServiceLoader.load(SparkSessionExtensionsProvider.class)
        .stream()
        .map(service -> service.type().getName())
        .filter(name -> name.startsWith("io.streamhouse."))
        .forEach(providers::add);
    assertEquals(List.of(SessionExtensions.class.getName()), providers);
  }
}
