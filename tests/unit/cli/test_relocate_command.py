"""``streamhouse relocate``, after a warehouse was moved and after it was copied."""

import shutil

import pytest

from streamhouse_spark import Warehouse
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.catalog import names, renaming
from streamhouse_spark.log.catalog.names import ViewEntry


@pytest.fixture
def filled(run, warehouse):
    warehouse.create_table("d.t", "id BIGINT").append([{"id": 1}])
    run("tier", "--once")
    return warehouse.table("d.t").uuid


def test_a_move_is_made_whole(run, filled, warehouse_path, tmp_path):
    there = str(tmp_path / "moved")
    shutil.move(warehouse_path, there)
    run("-w", there, "append", "d.t", "-", "--format", "json", stdin='{"id": 2}\n')
    assert "WAREHOUSE_MOVED" in run("-w", there, "tier", "--once", code=1).stderr
    planned = run("-w", there, "--output", "json", "relocate", "--dry-run")
    assert [(row["uuid"], row["dry_run"]) for row in planned.lines] == [(filled, True)]
    assert "WAREHOUSE_MOVED" in run("-w", there, "tier", "--once", code=1).stderr
    done = run("-w", there, "--output", "json", "relocate")
    assert done.lines[0]["files_written"] > 0
    assert done.lines[0]["moved_from"].startswith(warehouse_path)
    run("-w", there, "tier", "--once")
    rows = run("-w", there, "--output", "json", "head", "d.t$lake").lines
    assert sorted(row["id"] for row in rows) == [1, 2]
    assert run("-w", there, "--output", "json", "relocate").lines[0]["files_written"] == 0


def test_a_copy_gets_ids_of_its_own(run, filled, warehouse_path, tmp_path):
    there = str(tmp_path / "copy")
    shutil.copytree(warehouse_path, there)
    (row,) = run("-w", there, "--output", "json", "relocate", "--copy").lines
    assert row["former_uuid"] == filled == Warehouse(warehouse_path).table("d.t").uuid
    assert row["uuid"] == Warehouse(there).table("d.t").uuid != filled
    refused = run("-w", warehouse_path, "relocate", "--copy", code=1)
    assert "is not a copy" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_views_go_with_a_copy_and_stand_in_nobodys_way(run, filled, warehouse_path, tmp_path):
    assert filled
    wh = Warehouse(warehouse_path)
    view, renamed = TablePath("d", "v"), TablePath("d", "w")
    renaming.create_view(wh.storage, wh.world, view, ViewEntry("select 1", "{}"), replace=False)
    renaming.rename_view(wh.storage, wh.world, view, renamed)
    there = str(tmp_path / "copy")
    shutil.copytree(warehouse_path, there)
    run("-w", there, "relocate", "--copy")
    copy = Warehouse(there)
    assert list(names.list_views(copy.storage, "d")) == [renamed]
    assert renaming.require_view(copy.storage, renamed).text == "select 1"
    assert [row["table"] for row in run("-w", there, "--output", "json", "ls").lines] == ["d.t"]
    run("-w", there, "tier", "--once")
    copy.clean_dropped()
    assert copy.tables() == ["d.t"]
    assert "NAME_IS_VIEW" in run("-w", there, "head", "d.w", code=1).stderr
