package io.streamhouse.spark.cdc;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A column of the target table or a nested field, with the path that errors show. */
final class EventColumn {
  final String name;
  final String path;
  final DataType type;
  final boolean isNullable;

  /** The fields of a struct, the element of an array, or the key and value of a map. */
  final EventColumn[] children;

  /** The ordinal of each child by name. */
  final Map<String, Integer> ordinals = new HashMap<>();

  EventColumn(String name, String above, DataType type, boolean isNullable) {
    this.name = name;
    this.path = above.isEmpty() ? name : above + "." + name;
    this.type = type;
    this.isNullable = isNullable;
    if (type instanceof StructType) {
      children = fieldsOf((StructType) type, path);
    } else if (type instanceof ArrayType) {
      ArrayType array = (ArrayType) type;
      children = new EventColumn[] {new EventColumn("element", path, array.elementType(), array.containsNull())};
    } else if (type instanceof MapType) {
      MapType map = (MapType) type;
      children =
          new EventColumn[] {
            new EventColumn("key", path, map.keyType(), false),
            new EventColumn("value", path, map.valueType(), map.valueContainsNull())
          };
    } else {
      children = new EventColumn[0];
    }
    for (int i = 0; i < children.length; i++) ordinals.put(children[i].name, i);
  }

  /** Returns a nameless struct whose children are the columns of a table. */
  static EventColumn ofRow(StructType columns) {
    return new EventColumn("", "", columns, true);
  }

  private static EventColumn[] fieldsOf(StructType type, String path) {
    StructField[] fields = type.fields();
    EventColumn[] columns = new EventColumn[fields.length];
    for (int i = 0; i < fields.length; i++) {
      columns[i] = new EventColumn(fields[i].name(), path, fields[i].dataType(), fields[i].nullable());
    }
    return columns;
  }
}
