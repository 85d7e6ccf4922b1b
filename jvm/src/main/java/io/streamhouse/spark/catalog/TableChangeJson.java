package io.streamhouse.spark.catalog;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.constraints.Check;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;

/** Encodes the changes of ALTER TABLE as JSON. */
public final class TableChangeJson {
  private TableChangeJson() {}

  public static ObjectNode of(TableChange change) {
    if (change instanceof TableChange.SetProperty) {
      TableChange.SetProperty set = (TableChange.SetProperty) change;
      return Json.object().put("change", "set_property").put("name", set.property()).put("value", set.value());
    }
    if (change instanceof TableChange.RemoveProperty) {
      return Json.object()
          .put("change", "remove_property")
          .put("name", ((TableChange.RemoveProperty) change).property());
    }
    ObjectNode node = Json.object();
    if (change instanceof TableChange.ColumnChange) {
      ArrayNode path = node.putArray("path");
      for (String part : ((TableChange.ColumnChange) change).fieldNames()) path.add(part);
    }
    if (change instanceof TableChange.AddColumn) {
      TableChange.AddColumn add = (TableChange.AddColumn) change;
      node.put("change", "add_column").put("type", add.dataType().json()).put("nullable", add.isNullable());
      node.put("comment", add.comment());
      node.put("default", add.defaultValue() == null ? null : add.defaultValue().getSql());
      return withPosition(node, add.position());
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
    if (change instanceof TableChange.UpdateColumnPosition) {
      return withPosition(
          node.put("change", "update_position"), ((TableChange.UpdateColumnPosition) change).position());
    }
    if (change instanceof TableChange.UpdateColumnDefaultValue) {
      String sql = ((TableChange.UpdateColumnDefaultValue) change).newDefaultValue();
      return node.put("change", "update_default").put("default", sql == null || sql.isEmpty() ? null : sql);
    }
    if (change instanceof TableChange.AddConstraint) {
      Constraint constraint = ((TableChange.AddConstraint) change).constraint();
      node.put("change", "add_constraint").put("text", constraint.toDDL());
      if (constraint instanceof Check && constraint.enforced()) {
        node.putArray("check").add(constraint.name()).add(((Check) constraint).predicateSql());
      }
      return node;
    }
    if (change instanceof TableChange.DropConstraint) {
      return node.put("change", "drop_constraint").put("text", ((TableChange.DropConstraint) change).name())
          .put("if_exists", ((TableChange.DropConstraint) change).ifExists());
    }
    return node.put("change", "other").put("text", change.getClass().getSimpleName());
  }

  private static ObjectNode withPosition(ObjectNode node, TableChange.ColumnPosition position) {
    if (position instanceof TableChange.First) node.put("position", "first");
    if (position instanceof TableChange.After) {
      node.putObject("position").put("after", ((TableChange.After) position).column());
    }
    return node;
  }
}
