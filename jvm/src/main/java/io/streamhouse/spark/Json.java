package io.streamhouse.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LogicalExpressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;

/** JSON, to and from Spark's values in their internal form. */
final class Json {
  private static final ObjectMapper MAPPER = new ObjectMapper();

  private Json() {}

  static ObjectNode object() {
    return MAPPER.createObjectNode();
  }

  static ObjectNode object(Map<String, String> texts) {
    ObjectNode node = object();
    new TreeMap<>(texts).forEach(node::put);
    return node;
  }

  static ArrayNode array() {
    return MAPPER.createArrayNode();
  }

  static JsonNode parse(String text) {
    try {
      return MAPPER.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("not JSON: " + text, error);
    }
  }

  static Map<String, String> texts(JsonNode node) {
    Map<String, String> found = new HashMap<>();
    node.properties().forEach(entry -> found.put(entry.getKey(), entry.getValue().asText()));
    return found;
  }

  static List<String> list(JsonNode node) {
    List<String> found = new ArrayList<>();
    node.forEach(item -> found.add(item.asText()));
    return found;
  }

  static ObjectNode transform(Transform transform) {
    ObjectNode node = object().put("transform", transform.name());
    ArrayNode columns = node.putArray("columns");
    ArrayNode arguments = node.putArray("arguments");
    for (Expression argument : transform.arguments()) {
      if (argument instanceof NamedReference) {
        ArrayNode path = columns.addArray();
        for (String part : ((NamedReference) argument).fieldNames()) path.add(part);
      } else if (argument instanceof Literal) {
        arguments.addPOJO(((Literal<?>) argument).value());
      } else {
        arguments.add(argument.toString());
      }
    }
    return node;
  }

  static Transform transform(JsonNode node) {
    List<Expression> arguments = new ArrayList<>();
    for (JsonNode argument : node.get("arguments")) arguments.add(Expressions.literal(argument.asInt()));
    for (JsonNode column : node.get("columns")) arguments.add(FieldReference.column(column.get(0).asText()));
    return transform(node.get("transform").asText(), arguments.toArray(new Expression[0]));
  }

  /** Of references, not of texts: {@link Expressions#identity} and {@code bucket} take names for SQL, and parse them. */
  static Transform transform(String name, Expression... arguments) {
    if (name.equals("identity")) return LogicalExpressions.identity((NamedReference) arguments[0]);
    return Expressions.apply(name, arguments);
  }

  static ObjectNode change(TableChange change) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      return object().put("change", "set_property").put("name", set.property()).put("value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty) {
      return object()
          .put("change", "remove_property")
          .put("name", ((TableChange.RemoveProperty) change).property());
    }
    ObjectNode node = object();
    if (change instanceof TableChange.ColumnChange) {
      ArrayNode path = node.putArray("path");
      for (String part : ((TableChange.ColumnChange) change).fieldNames()) path.add(part);
    }
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      node.put("change", "add_column").put("type", add.dataType().json()).put("nullable", add.isNullable());
      node.put("comment", add.comment());
      node.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
      if (add.position() instanceof TableChange.First) node.put("position", "first");
      if (add.position() instanceof TableChange.After) {
        node.putObject("position").put("after", ((TableChange.After) add.position()).column());
      }
      return node;
    }
    if (change instanceof TableChange.UpdateColumnComment) {
      return node.put("change", "update_comment")
          .put("comment", ((TableChange.UpdateColumnComment) change).newComment());
    }
    if (change instanceof TableChange.RenameColumn) {
      return node.put("change", "rename_column").put("name", ((TableChange.RenameColumn) change).newName());
    }
    if (change instanceof TableChange.UpdateColumnType) {
      return node.put("change", "update_type")
          .put("type", ((TableChange.UpdateColumnType) change).newDataType().json());
    }
    if (change instanceof TableChange.UpdateColumnNullability) {
      return node.put("change", "update_nullability")
          .put("nullable", ((TableChange.UpdateColumnNullability) change).nullable());
    }
    if (change instanceof TableChange.DeleteColumn) return node.put("change", "delete_column");
    if (change instanceof TableChange.UpdateColumnPosition) return node.put("change", "update_position");
    if (change instanceof TableChange.UpdateColumnDefaultValue) {
      String sql = ((TableChange.UpdateColumnDefaultValue) change).newDefaultValue();
      return node.put("change", "update_default").put("default", sql == null || sql.isEmpty() ? null : sql);
    }
    if (change instanceof TableChange.AddConstraint) {
      return node.put("change", "add_constraint").put("text", ((TableChange.AddConstraint) change).constraint().toDDL());
    }
    if (change instanceof TableChange.DropConstraint) {
      return node.put("change", "drop_constraint").put("text", ((TableChange.DropConstraint) change).name());
    }
    return node.put("change", "other").put("text", change.getClass().getSimpleName());
  }

  /** A predicate as a tree; what has no form here is named as unknown, and Python takes it for anything. */
  static ObjectNode expression(Expression expression) {
    if (expression instanceof NamedReference) {
      ObjectNode node = object();
      ArrayNode path = node.putArray("column");
      for (String part : ((NamedReference) expression).fieldNames()) path.add(part);
      return node;
    }
    if (expression instanceof Literal) {
      Literal<?> literal = (Literal<?>) expression;
      ObjectNode node = object().put("type", literal.dataType().json());
      JsonNode value = value(literal.value());
      return value == null ? object().put("unknown", literal.toString()) : (ObjectNode) node.set("literal", value);
    }
    if (expression instanceof GeneralScalarExpression) {
      ObjectNode node = object().put("op", ((GeneralScalarExpression) expression).name());
      ArrayNode children = node.putArray("children");
      addChildren((GeneralScalarExpression) expression, children);
      return node;
    }
    return object().put("unknown", expression.toString());
  }

  /** A chain of ANDs or ORs as one: each of its links would nest deeper than JSON is read in Python. */
  private static void addChildren(GeneralScalarExpression expression, ArrayNode children) {
    boolean chains = expression.name().equals("AND") || expression.name().equals("OR");
    for (Expression child : expression.children()) {
      boolean continues = chains && child instanceof GeneralScalarExpression
          && ((GeneralScalarExpression) child).name().equals(expression.name());
      if (continues) addChildren((GeneralScalarExpression) child, children);
      else children.add(expression(child));
    }
  }

  /** A value in Spark's internal form; null where its type has none here. */
  static JsonNode value(Object value) {
    ArrayNode holder = array();
    if (value == null) return holder.addNull().get(0);
    if (value instanceof Boolean) return holder.add((Boolean) value).get(0);
    if (value instanceof Byte || value instanceof Short || value instanceof Integer || value instanceof Long) {
      return holder.add(((Number) value).longValue()).get(0);
    }
    if (value instanceof Float || value instanceof Double) {
      double number = ((Number) value).doubleValue();
      return Double.isFinite(number) ? holder.add(number).get(0) : holder.add(Double.toString(number)).get(0);
    }
    if (value instanceof byte[]) return holder.add(Base64.getEncoder().encodeToString((byte[]) value)).get(0);
    if (value instanceof UTF8String || value instanceof Decimal) return holder.add(value.toString()).get(0);
    return null;
  }

  /** A value of an answer in Spark's internal form. */
  static Object value(JsonNode node, DataType type) {
    if (node == null || node.isNull()) return null;
    if (type instanceof BooleanType) return node.asBoolean();
    if (type instanceof ByteType) return (byte) node.asInt();
    if (type instanceof ShortType) return (short) node.asInt();
    if (type instanceof IntegerType || type instanceof DateType) return node.asInt();
    if (type instanceof LongType || type instanceof TimestampType || type instanceof TimestampNTZType) {
      return node.asLong();
    }
    if (type instanceof FloatType) return node.isTextual() ? Float.valueOf(node.asText()) : (float) node.asDouble();
    if (type instanceof DoubleType) return node.isTextual() ? Double.valueOf(node.asText()) : node.asDouble();
    if (type instanceof DecimalType) {
      DecimalType decimal = (DecimalType) type;
      return Decimal.apply(new BigDecimal(node.asText()), decimal.precision(), decimal.scale());
    }
    if (type instanceof BinaryType) return Base64.getDecoder().decode(node.asText());
    if (type instanceof StringType) return UTF8String.fromString(node.asText());
    throw new IllegalStateException("no values of type " + type + " in answers");
  }

  static InternalRow row(JsonNode values, StructType schema) {
    Object[] row = new Object[schema.length()];
    for (int i = 0; i < row.length; i++) row[i] = value(values.get(i), schema.fields()[i].dataType());
    return new GenericInternalRow(row);
  }
}
