"""``branch``, ``publish-branch``, ``drop-branch``, and ``verify`` of a table with branches."""

from __future__ import annotations


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
    assert "a branch takes and gives rows alone" in run("drop", "sales.orders$branch_other", "--yes", code=1).stderr


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
