package io.streamhouse.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
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
 * The catalog with views, for Spark from 4.2 on. 4.1 lacks the types, so it cannot load this class, and its sessions
 * have {@link StreamhouseCatalog}, which knows of views only that a name is one.
 */
public class StreamhouseViewCatalog extends StreamhouseCatalog implements RelationCatalog {
  @Override
  public Relation loadRelation(Identifier identifier) throws NoSuchTableException {
    try {
      return load(identifier, PythonCatalog.named(identifier), "NAME_IS_VIEW");
    } catch (Refused isView) {
      return view(identifier);
    }
  }

  @Override
  public Table loadTable(Identifier identifier) throws NoSuchTableException {
    try {
      return load(identifier, PythonCatalog.named(identifier), "NAME_IS_VIEW");
    } catch (Refused isView) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  WritableTable writableTable(Identifier identifier, JsonNode found, boolean isPartitioned) {
    return isPartitioned
        ? new EvolvingTables.Partitioned(this, identifier, found)
        : new EvolvingTables.Plain(this, identifier, found);
  }

  private View view(Identifier identifier) throws NoSuchTableException {
    try {
      return ViewJson.view(python().ask("load_view", PythonCatalog.named(identifier), "VIEW_NOT_FOUND").get("view"));
    } catch (Refused refused) {
      throw new NoSuchTableException(identifier);
    }
  }

  @Override
  public Identifier[] listViews(String[] namespace) throws NoSuchNamespaceException {
    if (namespace.length != 1) throw new NoSuchNamespaceException(namespace);
    List<Identifier> found = new ArrayList<>();
    try {
      ObjectNode arguments = JsonTree.object().put("database", namespace[0]);
      for (JsonNode view : python().ask("views", arguments, "DATABASE_NOT_FOUND").get("views")) {
        found.add(Identifier.of(namespace, view.asText()));
      }
    } catch (Refused refused) {
      throw new NoSuchNamespaceException(namespace);
    }
    return found.toArray(new Identifier[0]);
  }

  @Override
  public View createView(Identifier identifier, View view)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    return create(identifier, view, false);
  }

  /** One pointer of the name, so that there is no moment without the view. */
  @Override
  public View createOrReplaceView(Identifier identifier, View view)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    return create(identifier, view, true);
  }

  private View create(Identifier identifier, View view, boolean replace)
      throws ViewAlreadyExistsException, NoSuchNamespaceException {
    ObjectNode arguments = PythonCatalog.named(identifier).put("replace", replace);
    arguments.set("view", ViewJson.of(view));
    try {
      python().ask("create_view", arguments, "VIEW_EXISTS", "TABLE_EXISTS", "DATABASE_NOT_FOUND");
      return view;
    } catch (Refused refused) {
      if (refused.is("DATABASE_NOT_FOUND")) throw new NoSuchNamespaceException(identifier.namespace());
      throw new ViewAlreadyExistsException(identifier);
    }
  }

  @Override
  public View replaceView(Identifier identifier, View view) throws NoSuchViewException {
    ObjectNode arguments = PythonCatalog.named(identifier);
    arguments.set("view", ViewJson.of(view));
    try {
      python().ask("replace_view", arguments, "VIEW_NOT_FOUND");
      return view;
    } catch (Refused refused) {
      throw new NoSuchViewException(identifier);
    }
  }

  @Override
  public boolean dropView(Identifier identifier) {
    return python().ask("drop_view", PythonCatalog.named(identifier)).get("dropped").asBoolean();
  }

  @Override
  public void renameView(Identifier from, Identifier to) throws NoSuchViewException, ViewAlreadyExistsException {
    ObjectNode arguments = PythonCatalog.named(from).put("to_database", databaseOf(to)).put("to_table", to.name());
    try {
      python().ask("rename_view", arguments, "VIEW_NOT_FOUND", "VIEW_EXISTS", "TABLE_EXISTS");
    } catch (Refused refused) {
      if (refused.is("VIEW_NOT_FOUND")) throw new NoSuchViewException(from);
      throw new ViewAlreadyExistsException(to);
    }
  }
}
