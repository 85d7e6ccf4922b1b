package io.streamhouse.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A column of a table that events are for, or a field inside one, with the names that errors and schemas have. */
final class EventColumn {
  final String name;
  final String path;
  final DataType type;
  final boolean isNullable;

  /** Fields of a struct; the element of an array; key and value of a map. */
  final EventColumn[] parts;

  /** Where a field is among {@code parts}. */
  final Map<String, Integer> places = new HashMap<>();

  EventColumn(String name, String above, DataType type, boolean isNullable) {
    this.name = name;
    this.path = above.isEmpty() ? name : above + "." + name;
    this.type = type;
    this.isNullable = isNullable;
    if (type instanceof StructType) {
      parts = of((StructType) type, path);
    } else if (type instanceof ArrayType) {
      ArrayType array = (ArrayType) type;
      parts = new EventColumn[] {new EventColumn("element", path, array.elementType(), array.containsNull())};
    } else if (type instanceof MapType) {
      MapType map = (MapType) type;
      parts =
          new EventColumn[] {
            new EventColumn("key", path, map.keyType(), false),
            new EventColumn("value", path, map.valueType(), map.valueContainsNull())
          };
    } else {
      parts = new EventColumn[0];
    }
    for (int i = 0; i < parts.length; i++) places.put(parts[i].name, i);
  }

  /** The columns of a table, as the parts of one that has no name. */
  static EventColumn row(StructType columns) {
    return new EventColumn("", "", columns, true);
  }

  private static EventColumn[] of(StructType type, String path) {
    StructField[] fields = type.fields();
    EventColumn[] made = new EventColumn[fields.length];
    for (int i = 0; i < fields.length; i++) {
      made[i] = new EventColumn(fields[i].name(), path, fields[i].dataType(), fields[i].nullable());
    }
    return made;
  }
}
