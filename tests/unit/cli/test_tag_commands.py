"""``tag``, ``tags``, ``drop-tag``, ``clone``."""

from __future__ import annotations

import json


def test_versions_get_names_and_lose_them(run, warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": 1}])
    version = table.refresh().version
    table.append([{"id": 2}])
    assert (
        f"one is commit {version} of sales.orders"
        in run("tag", "sales.orders", "one", "--version", str(version), "--retain-days", "2").stdout
    )
    made = run("tag", "sales.orders", "two", "--version", "one", "-o", "json").document
    assert (made["version"], made["expires_ms"]) == (version, None)
    shown = [json.loads(line) for line in run("tags", "sales.orders", "-o", "json").stdout.splitlines()]
    assert [(row["name"], row["type"], row["version"]) for row in shown] == [
        ("main", "BRANCH", version + 3),
        ("one", "TAG", version),
        ("two", "TAG", version),
    ]
    assert "rolled sales.orders back" in run("rollback", "sales.orders", "--to", "two", "--yes").stdout
    assert table.to_arrow()["id"].to_pylist() == [1]
    assert "dropped the tag one" in run("drop-tag", "sales.orders", "one").stdout
    assert [tag.name for tag in table.tags()] == ["two"]


def test_wrong_names_are_told(run, warehouse):
    warehouse.create_table("sales.orders", "id BIGINT")
    assert "choose such a name" in run("tag", "sales.orders", "main", code=1).stderr
    assert "has no tag 'a'" in run("drop-tag", "sales.orders", "a", code=1).stderr
    assert "tags: none" in run("rollback", "sales.orders", "--to", "a", "--yes", code=1).stderr


def test_a_version_becomes_a_table(run, warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": 1}])
    first = table.create_tag("one").version
    table.append([{"id": 2}])
    newest = table.refresh().version
    shown = run("clone", "sales.orders", "sales.copy").stdout
    assert f"sales.copy is a clone of commit {newest} of sales.orders" in shown
    made = run("clone", "sales.orders", "sales.first", "--version", "one", "-o", "json").document
    assert made == {"source": "sales.orders", "target": "sales.first", "version": first, "lake_snapshot": None}
    assert warehouse.table("sales.first").to_arrow()["id"].to_pylist() == [1]
    assert "drop it first, or choose another name" in run("clone", "sales.orders", "sales.copy", code=1).stderr
