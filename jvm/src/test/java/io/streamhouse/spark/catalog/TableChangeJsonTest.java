package io.streamhouse.spark.catalog;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.streamhouse.spark.util.Json;
import org.apache.spark.sql.connector.catalog.TableChange.ColumnPosition;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.DataTypes;
import org.junit.jupiter.api.Test;

class TableChangeJsonTest {
  private static final String[] PATH = {"s", "a.b"};

  private static void assertChange(String expected, TableChange change) {
    assertEquals(Json.parse(expected.replace('\'', '"')), TableChangeJson.of(change));
  }

  @Test
  void eachChangeIsEncoded() {
    assertChange("{'change':'set_property','name':'a','value':'b'}", TableChange.setProperty("a", "b"));
    assertChange("{'change':'remove_property','name':'a'}", TableChange.removeProperty("a"));
    assertChange("{'change':'rename_column','path':['s','a.b'],'name':'c'}", TableChange.renameColumn(PATH, "c"));
    assertChange("{'change':'delete_column','path':['s','a.b']}", TableChange.deleteColumn(PATH, false));
    assertChange(
        "{'change':'update_comment','path':['s','a.b'],'comment':'c'}", TableChange.updateColumnComment(PATH, "c"));
    assertChange(
        "{'change':'update_type','path':['s','a.b'],'type':'\\'long\\''}".replace("\\'", "\\\""),
        TableChange.updateColumnType(PATH, DataTypes.LongType));
    assertChange(
        "{'change':'update_nullability','path':['s','a.b'],'nullable':true}",
        TableChange.updateColumnNullability(PATH, true));
    assertChange(
        "{'change':'update_position','path':['s','a.b'],'position':'first'}",
        TableChange.updateColumnPosition(PATH, ColumnPosition.first()));
    assertChange(
        "{'change':'update_position','path':['s','a.b'],'position':{'after':'x'}}",
        TableChange.updateColumnPosition(PATH, ColumnPosition.after("x")));
    assertChange(
        "{'change':'drop_constraint','text':'k','if_exists':false}", TableChange.dropConstraint("k", false, false));
  }

  @Test
  void addedColumnsHaveAPosition() {
    String added = "{'change':'add_column','path':['s','a.b'],'type':'\\'integer\\'','nullable':true,'comment':null,"
        .replace("\\'", "\\\"");
    assertChange(
        added + "'default':null,'position':'first'}",
        TableChange.addColumn(PATH, DataTypes.IntegerType, true, null, ColumnPosition.first(), null));
    assertChange(
        added + "'default':null,'position':{'after':'x'}}",
        TableChange.addColumn(PATH, DataTypes.IntegerType, true, null, ColumnPosition.after("x"), null));
    assertChange(
        added + "'default':null}", TableChange.addColumn(PATH, DataTypes.IntegerType, true, null, null, null));
  }

  /** Spark encodes DROP DEFAULT as an empty string. */
  @Test
  void aDefaultIsItsSqlOrNull() {
    String head = "{'change':'update_default','path':['s','a.b'],'default':";
    assertChange(head + "'1 + 1'}", TableChange.updateColumnDefaultValue(PATH, "1 + 1"));
    assertChange(head + "null}", TableChange.updateColumnDefaultValue(PATH, ""));
  }

  @Test
  void aChangeOfANewerSparkIsEncodedByName() {
    assertEquals("other", TableChangeJson.of(new Later()).get("change").asText());
    assertEquals("Later", TableChangeJson.of(new Later()).get("text").asText());
  }

  private static final class Later implements TableChange {}

  @Test
  void transformsRoundTrip() {
    Transform[] transforms = {
      Expressions.identity("`a.b`"), Expressions.bucket(4, "`a.b`"), Expressions.bucket(2, "x")
    };
    for (Transform transform : transforms) {
      Transform returned = TransformJson.of(Json.parse(TransformJson.of(transform).toString()));
      assertEquals(transform.toString(), returned.toString());
      assertEquals(transform.references()[0].fieldNames()[0], returned.references()[0].fieldNames()[0]);
    }
    Transform identity = Expressions.identity("x"); // Spark recognizes a partition column by its class
    assertEquals(identity.getClass(), TransformJson.of(TransformJson.of(identity)).getClass());
    assertEquals(
        "{\"transform\":\"bucket\",\"columns\":[[\"s\",\"x\"]],\"arguments\":[4]}",
        TransformJson.of(Expressions.apply("bucket", Expressions.literal(4), FieldReference.apply("s.x"))).toString());
  }
}
