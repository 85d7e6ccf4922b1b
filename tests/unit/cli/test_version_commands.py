"""Commands for branches, tags, clones and rollback."""

from __future__ import annotations

import json


def test_a_branch_is_made_published_and_dropped(run, warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": 1}])
    version = table.refresh().version
    shown = run("branch", "sales.orders", "audit").stdout
    assert f"sales.orders$branch_audit starts at commit {version} of sales.orders" in shown
    table.branch("audit").append([{"id": 2}])
    assert "2" in run("head", "sales.orders$branch_audit", "-o", "json").stdout
    assert table.to_arrow()["id"].to_pylist() == [1]
    done = run("publish-branch", "sales.orders", "audit", "-o", "json").document
    assert (done["branch"], done["rows_written"], done["version"]) == ("audit", 1, table.refresh().version)
    assert table.to_arrow()["id"].to_pylist() == [1, 2]
    again = run("publish-branch", "sales.orders", "audit").stdout
    assert f"commit {done['version']} of sales.orders has the changes of its branch audit" in again
    made = run("branch", "sales.orders", "other", "-o", "json").document
    assert (made["name"], made["lake_snapshot"]) == ("other", None)
    assert "dropped the branch other" in run("drop-branch", "sales.orders", "other").stdout
    assert "has no branch 'other'" in run("drop-branch", "sales.orders", "other", code=1).stderr
    assert (
        "a branch supports only reads and writes of rows"
        in run("drop", "sales.orders$branch_other", "--yes", code=1).stderr
    )


def test_verify_looks_at_branches(run, warehouse):
    table = warehouse.create_table("sales.orders", "id BIGINT")
    table.append([{"id": n} for n in range(200_000)])
    table.create_branch("audit")
    branch = table.branch("audit")
    assert run("verify", "sales.orders", "-o", "json").document["problems"] == []
    assert run("verify", "sales.orders$branch_audit", "-o", "json").document["problems"] == []
    (segment,) = [s for s in branch.state.live_segments() if s.uuid]
    key = f"tables/{branch.uuid}/segments/{segment.uuid}.arrow"
    data = bytearray(branch.storage.read(key))
    data[len(data) // 2] ^= 1
    branch.storage.delete(key)
    branch.storage.put_if_absent(key, bytes(data))
    told = run("verify", "sales.orders", "-o", "json", code=1).document["problems"]
    assert len(told) == 1
    assert told[0].startswith("sales.orders$branch_audit: ")


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
