package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.streamhouse.spark.catalog.PythonCatalog;
import io.streamhouse.spark.catalog.ViewJson;
import io.streamhouse.spark.rpc.MappedException;
import io.streamhouse.spark.util.Json;
import io.streamhouse.spark.write.SchemaEvolvingTables;
import io.streamhouse.spark.write.WritableTable;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NoSuchViewException;
import org.apache.spark.sql.catalyst.analysis.ViewAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Relation;
import org.apache.spark.sql.connector.catalog.RelationCatalog;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.View;

/**
 * The catalog with views, for Spark 4.2 and newer. Spark 4.1 lacks the view API and cannot load this class. Its
 * sessions use {@link StreamhouseCatalog}, which only knows that a name is a view.
 */
public class StreamhouseViewCatalog extends StreamhouseCatalog implements RelationCatalog {
  @Override
  public Relation loadRelation(Identifier identifier) throws NoSuchTableException {
    try {
      return load(identifier, PythonCatalog.nameArguments(identifier), "NAME_IS_VIEW");
    } catch (MappedException nameIsView) {
      return readView(identifier);
    }
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    try {
      return load(identifier, PythonCatalog.nameArguments(identifier), "NAME_IS_VIEW");
    } catch (MappedException nameIsView) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  WritableTable newWritableTable(Identifier identifier, JsonNode metadata, boolean isPartitioned) {
    return isPartitioned
        ? new SchemaEvolvingTables.Partitioned(this, identifier, metadata)
        : new SchemaEvolvingTables.Unpartitioned(this, identifier, metadata);
  }

  private View readView(Identifier identifier) throws NoSuchTableException {
    try {
      return ViewJson.toView(
          python().call("load_view", PythonCatalog.nameArguments(identifier), "VIEW_NOT_FOUND").get("view"));
    } catch (MappedException error) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  public Identifier[] listViews(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length != 1) throw new NoSuchNamespaceException(namespace);
    List<Identifier> identifiers = new ArrayList<>();
    try {
      ObjectNode arguments = Json.object().put("database", namespace[0]);
      for (JsonNode view : python().call("views", arguments, "DATABASE_NOT_FOUND").get("views")) {
        identifiers.add(Identifier.of(namespace, view.asText()));
      }
    } catch (MappedException error) {
      throw new NoSuchNamespaceException(namespace);
    }
    return identifiers.toArray(new Identifier[0]);
  }

  @Override
  public View createView(Identifier identifier, View view)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    return storeView(identifier, view, false);
  }

  /** Replaces the view with one conditional put of its name, so that the view exists at every moment. */
  @Override
  public View createOrReplaceView(Identifier identifier, View view)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    return storeView(identifier, view, true);
  }

  private View storeView(Identifier identifier, View view, boolean replace)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier).put("replace", replace);
    arguments.set("view", ViewJson.of(view));
    try {
      python().call("create_view", arguments, "VIEW_EXISTS", "TABLE_EXISTS", "DATABASE_NOT_FOUND");
      return view;
    } catch (MappedException error) {
      if (error.hasCondition("DATABASE_NOT_FOUND")) throw new NoSuchNamespaceException(identifier.namespace());
      throw new ViewAlreadyExistsException(identifier);
    }
  }

  @Override
  public View replaceView(Identifier identifier, View view) throws NoSuchViewException {
    ObjectNode arguments = PythonCatalog.nameArguments(identifier);
    arguments.set("view", ViewJson.of(view));
    try {
      python().call("replace_view", arguments, "VIEW_NOT_FOUND");
      return view;
    } catch (MappedException error) {
      throw new NoSuchViewException(identifier);
    }
  }

  @Override
  public boolean dropView(Identifier identifier) {
    return python().call("drop_view", PythonCatalog.nameArguments(identifier)).get("dropped").asBoolean();
  }

  @Override
  public void renameView(Identifier from, Identifier to) throws NoSuchViewException, ViewAlreadyExistsException {
    ObjectNode arguments =
        PythonCatalog.nameArguments(from).put("to_database", databaseOf(to)).put("to_table", to.name());
    try {
      python().call("rename_view", arguments, "VIEW_NOT_FOUND", "VIEW_EXISTS", "TABLE_EXISTS");
    } catch (MappedException error) {
      if (error.hasCondition("VIEW_NOT_FOUND")) throw new NoSuchViewException(from);
      throw new ViewAlreadyExistsException(to);
    }
  }
}
