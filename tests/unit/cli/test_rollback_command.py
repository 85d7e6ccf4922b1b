"""``rollback``."""

from __future__ import annotations


def test_it_asks_goes_back_and_reports(run, warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": 1}, {"id": 2}])
    version = str(table.refresh().version)
    table.append([{"id": 3}])
    newest = table.refresh().version
    command = ("rollback", "sales.orders", "--to", version)
    refused = run(*command, stdin="n\n", code=1)
    assert "roll sales.orders back to commit 2: 1 row removed, 0 restored?" in refused.stderr
    shown = run(*command, "--dry-run", "-o", "json").document
    assert (shown["rows_deleted"], shown["seen_version"], shown["dry_run"]) == (1, newest, True)
    assert table.refresh().version == newest
    assert "rolled sales.orders back to commit 2: 1 row removed" in run(*command, "--yes").stdout
    assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]


def test_wrong_commits_and_names_are_told(run, warehouse):
    warehouse.create_table("sales.orders", "id BIGINT")
    assert "has no commit 9" in run("rollback", "sales.orders", "--to", "9", "--yes", code=1).stderr
    assert run("rollback", "sales.orders$lake", "--to", "1", code=1).stderr.startswith("INVALID_NAME: ")
    assert run("rollback", "sales.orders", code=2).stderr
