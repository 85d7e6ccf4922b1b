"""tier, maintain, verify, doctor, relocate; a damaged table ends none of them early."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import streamhouse_spark as sh
from interop.paimon_cases import Stock
from streamhouse_spark import Warehouse
from streamhouse_spark.cli import diagnostics as doctor_module
from streamhouse_spark.cli.diagnostics import Finding
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import commit_key
from streamhouse_spark.log.catalog import name_changes, names
from streamhouse_spark.log.catalog.names import ViewEntry


@pytest.fixture
def table(run, warehouse):
    run("create", "t", "--schema", "id BIGINT, name STRING", "--buckets", "2", "-p", "bucket.key=id")
    table = warehouse.table("t")
    for start in range(0, 50, 10):
        table.append([{"id": i, "name": f"n{i}"} for i in range(start, start + 10)])
    return table


def test_tier_once_reports_the_tiered_rows(run, table):
    (report,) = run("tier", "--once", "-o", "json").lines
    assert (report["table"], report["rows"]) == ("default.t", 50)
    assert len(report["snapshots"]) == 1
    assert run("tier", "--once", "t", "-o", "json").lines[0]["rows"] == 0
    assert table.lake.to_arrow().num_rows == 50
    assert run("describe", "t", "-o", "json").document["lag"] == 0


def test_tier_passes_over_tables_without_a_lake(run, table):
    run("create", "dry", "--schema", "id BIGINT", "-p", "table.datalake.enabled=false")
    assert [r["table"] for r in run("tier", "--once", "-o", "json").lines] == ["default.t"]
    failed = run("tier", "--once", "dry", code=1)
    assert failed.stderr.startswith(
        "INVALID_OPTION: table default.dry has no lake; enable it with `streamhouse alter default.dry"
    )
    assert run("tier", "--once", "absent", code=1).stderr.startswith("TABLE_NOT_FOUND: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_service_tiers_until_it_is_told_to_stop(run, table, warehouse_path, number):
    run("alter", "t", "--set", "table.datalake.freshness=1s")
    service = subprocess.Popen(
        [Path(sys.executable).parent / "streamhouse", "tier", "-o", "json", "-w", warehouse_path],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        assert '"rows": 50' in service.stdout.readline()
        table.append([{"id": 100}])
        assert '"rows": 1' in service.stdout.readline()
        service.send_signal(number)
        assert service.wait(240) == 0
    finally:
        service.kill()
        service.wait()
        service.stdout.close()
    assert table.lake.to_arrow().num_rows == 51


def test_maintain_merges_segments_unless_it_is_a_dry_run(run, table):
    (dry,) = run("maintain", "--dry-run", "-o", "json").lines
    assert (dry["dry_run"], dry["segments_merged"]) == (True, 0)
    (done,) = run("maintain", "t", "-o", "json").lines
    assert (done["table"], done["dry_run"]) == ("default.t", False)
    assert done["segments_merged"] > 0
    assert table.to_arrow().num_rows == 50


def test_maintain_refuses_a_grace_that_protects_nobody(run, table):
    assert run("maintain", "--grace", "1s", code=1).stderr.startswith("INVALID_OPTION: grace of 1000 ms")
    assert "expected a duration" in run("maintain", "--grace", "soon", code=2).stderr


def test_the_lake_is_kept_small_a_verb_at_a_time(run, table):
    for _ in range(6):
        table.append([{"id": 0}])  # always the same bucket
        run("tier", "--once")
    (shown,) = run("rewrite-manifests", "t", "--dry-run", "-o", "json").lines
    (done,) = run("rewrite-manifests", "t", "-o", "json").lines
    assert (shown["manifests_removed"], shown["manifests_added"], shown["dry_run"]) == (6, 1, True)
    assert done == {**shown, "dry_run": False}
    files = table.lake.files().num_rows
    (shown,) = run("compact", "t", "--dry-run", "-o", "json").lines
    assert table.lake.files().num_rows == files
    (done,) = run("compact", "t", "-o", "json").lines
    assert shown["files_removed"] == done["files_removed"] >= 5
    assert table.lake.files().num_rows == files - done["files_removed"] + done["files_added"]
    assert run("expire-snapshots", "t", "-o", "json").lines[0]["snapshots"] == 0
    (shown,) = run("expire-snapshots", "t", "--older-than", "0s", "--retain-last", "2", "--dry-run", "-o", "json").lines
    (done,) = run("expire-snapshots", "t", "--older-than", "0s", "--retain-last", "2", "-o", "json").lines
    assert (shown["snapshots"], shown["dry_run"]) == (6, True)
    assert done == {**shown, "dry_run": False}
    assert table.lake.snapshots().num_rows == 2
    left_over = Path(table.storage.local_path("lake/default/t/data")) / "left-over.parquet"
    left_over.write_bytes(b"rows")
    os.utime(left_over, (0, 0))
    assert [line["dry_run"] for line in run("remove-orphan-files", "t", "--dry-run", "-o", "json").lines] == [True]
    assert run("remove-orphan-files", "t", "-o", "json").lines[0]["file"].endswith("left-over.parquet")
    assert not left_over.exists()
    assert run("head", "t", "-n", "100", "-o", "json").stdout.count("\n") == 56


def test_an_iceberg_table_is_adopted_and_stays_when_the_table_is_dropped(run, table):
    run("tier", "--once")
    lake = table.open_lake().binding.load()
    with lake.transaction() as transaction:
        transaction.remove_properties("streamhouse.table-uuid")
    shown = run("adopt", "again", "--lake", "default.t", "--dry-run", "-o", "json").document
    assert (shown["rows"], shown["bucket_key"], shown["dry_run"]) == (50, "id", True)
    failed = run("adopt", "again", "--lake", "default.t", "--primary-key", "id", code=1)
    assert "'id' of the primary key is optional, expected required" in failed.stderr
    assert "would adopt" in run("adopt", "again", "--lake", "default.t", "--dry-run").stdout
    assert run("adopt", "again", "--lake", "default.t", "-o", "json").document == {**shown, "dry_run": False}
    assert run("head", "again", "-n", "100", "-o", "json").stdout.count("\n") == 50
    assert run("verify", "again", "-o", "json").document["problems"] == []
    assert run("adopt", "once_more", "--lake", "default.t", code=1).stderr.startswith("LAKE_MISMATCH: ")
    assert "the adopted lake table stays" in run("drop", "again", "--yes").stdout
    assert run("adopt", "once_more", "--lake", "default.t", "-o", "json").document["rows"] == 50


@pytest.mark.paimon
def test_a_paimon_table_is_adopted(run, warehouse, own_cache, tmp_path):
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int32())])
    rows = [{"id": i, "n": i} for i in range(5)]
    Stock(warehouse.storage, tmp_path / "stock").make("legacy.t", schema, rows, primary_key=["id"], bucket="2")
    shown = run("adopt", "t", "--lake", "legacy.t", "--dry-run", "-o", "json").document
    assert (shown["rows"], shown["format"], shown["primary_key"], shown["buckets"]) == (5, "paimon", ["id"], 2)
    assert "rows in 2 files" in run("adopt", "t", "--lake", "legacy.t", "-p", "table.datalake.format=paimon").stdout
    run("append", "t", "-", "--format", "json", stdin='{"id": 1, "n": 10}\n{"id": 9, "n": 9}')
    run("tier", "--once", "t")
    assert run("verify", "t", "-o", "json").document["problems"] == []
    assert run("head", "t", "--where", "n >= 9", "-o", "json").stdout.count("\n") == 2


def test_rows_of_the_lake_are_laid_out_by_columns(run, table):
    run("tier", "--once")
    run("append", "t", "-", "--format", "json", stdin="\n".join(f'{{"id": {i}}}' for i in range(100)))
    run("tier", "--once")
    rows = table.to_arrow().num_rows
    given = ("optimize", "t", "--order-by", "zorder(id)")
    (shown,) = run(*given, "--dry-run", "-o", "json").lines
    (done,) = run(*given, "-o", "json").lines
    assert (shown["rows"], shown["dry_run"]) == (rows, True)
    assert {**done, "files_added": 0} == {**shown, "files_added": 0, "dry_run": False}
    assert run(*given, "-o", "json").lines[0]["rows"] == 0
    assert run(*given, "--where", "id > 1", "-o", "json").lines[0]["rows"] == 0
    assert table.lake.to_arrow().num_rows == rows
    assert "has a direction" in run("optimize", "t", "--order-by", "id DESC", code=1).stderr
    assert "--order-by" in run("optimize", "t", code=2).stderr


def test_the_verbs_refuse_what_cannot_be(run, table):
    run("tier", "--once")
    assert "at least 1" in run("expire-snapshots", "t", "--retain-last", "0", code=1).stderr
    assert run("remove-orphan-files", "t", "--older-than", "1s", code=1).stderr.startswith("INVALID_OPTION: grace")
    for verb in ("compact", "expire-snapshots", "remove-orphan-files", "rewrite-manifests"):
        assert run(verb, "absent", code=1).stderr.startswith("TABLE_NOT_FOUND: ")


def test_verify_of_a_table_that_is_well(run, table):
    found = run("verify", "t", "-o", "json").document
    assert (found["log_rows"], found["lake_rows"], found["lake_snapshot_id"], found["problems"]) == (50, 0, None, [])
    run("tier", "--once")
    run("maintain")
    found = run("verify", "t", "-o", "json").document
    assert (found["log_rows"], found["lake_rows"], found["problems"]) == (50, 50, [])
    assert "all files exist" in run("verify", "t").stdout


def test_verify_checks_a_table_with_a_primary_key(run, warehouse, own_cache):
    table = warehouse.create_table("k", "id BIGINT, n INT", primary_key=["id"])
    for n in range(3):
        table.upsert([{"id": i, "n": n} for i in range(4)])
        run("tier", "--once", "k")
    found = run("verify", "k", "-o", "json").document
    assert (found["log_rows"], found["lake_rows"], found["problems"]) == (20, 4, [])


def files_of(table, part: str) -> list[Path]:
    return sorted(
        path for path in Path(table.storage.local_path("")).rglob("*") if part in str(path) and path.is_file()
    )


def test_verify_finds_a_flipped_bit_in_a_segment(run, table):
    run("maintain")
    (path, *_) = files_of(table, ".arrow")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    failed = run("verify", "t", "-o", "json", code=1)
    assert len(failed.document["problems"]) == 1
    assert "do not match their checksum" in failed.document["problems"][0]
    assert failed.stderr == "default.t: 1 problem found\n"


def test_verify_finds_missing_files_of_log_and_lake(run, table):
    run("tier", "--once")
    run("maintain")
    for part in (".arrow", ".parquet"):
        files_of(table, part)[0].unlink()
    failed = run("verify", "t", code=1)
    assert "is missing" in failed.stdout
    assert "problems found" in failed.stderr
    problems = run("verify", "t", "-o", "json", code=1).document["problems"]
    assert any(".arrow is missing" in problem for problem in problems)
    assert any(".parquet" in problem or "50 tiered offsets" in problem for problem in problems)


def test_verify_describes_gaps_between_segments():
    from streamhouse_spark.cli.fsck import describe_gaps
    from streamhouse_spark.log.segment import Segment
    from streamhouse_spark.log.state import BucketLog

    def segment(base: int, rows: int) -> Segment:
        return Segment(0, base, rows, 1, 1, 1, 0, 0)

    assert list(describe_gaps(0, BucketLog(0, 10, (segment(0, 4), segment(4, 6))))) == []
    assert list(describe_gaps(0, BucketLog(2, 10, (segment(0, 4), segment(4, 6))))) == []
    assert list(describe_gaps(0, BucketLog(0, 0, ()))) == []
    assert len(list(describe_gaps(0, BucketLog(0, 10, (segment(0, 4), segment(5, 5)))))) == 1
    assert len(list(describe_gaps(0, BucketLog(0, 10, (segment(0, 4),))))) == 1
    assert len(list(describe_gaps(0, BucketLog(0, 10, (segment(1, 9),))))) == 1


def test_doctor_says_what_is_wrong_and_what_to_do(run, monkeypatch):
    findings = [
        Finding("Python", "ok", "3.12"),
        Finding("disk", "warn", "1 GiB free", "free some space"),
        Finding("Java", "fail", "none", "install it"),
    ]
    monkeypatch.setattr("streamhouse_spark.cli.maintenance_commands.run_doctor", lambda *_: findings)
    failed = run("doctor", code=1)
    assert failed.stderr == "failed checks: Java\n"
    for part in ("3.12", "→ free some space", "→ install it", "FAILED"):
        assert part in failed.stdout
    assert [line["level"] for line in run("doctor", "-o", "json", code=1).lines] == ["ok", "warn", "fail"]
    findings.pop()
    run("doctor")


def test_doctor_looks_at_this_machine_and_the_warehouse(run, table, monkeypatch):
    monkeypatch.setattr(doctor_module, "find_worker_python", lambda _: doctor_module.WorkerPython("x", _python(), True))
    found = {line["check"]: line["level"] for line in run("doctor", "-o", "json").lines}
    assert {"Python", "Java", "pyarrow", "warehouse", "put-if-absent", "clock", "disk"} <= found.keys()
    assert found["warehouse"] == "ok"


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.long
def test_commands_work_through_the_installed_script(table, warehouse_path, tmp_path):
    script = Path(sys.executable).parent / "streamhouse"

    def call(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "STREAMHOUSE_WAREHOUSE": warehouse_path}
        return subprocess.run(
            [script, *args], input=stdin, capture_output=True, text=True, env=env, timeout=600, check=False
        )

    listed = call("ls", "-o", "json")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert '"table": "default.t"' in listed.stdout
    added = call("append", "t", "-", "--format", "json", stdin='{"id": 1}\n')
    assert (added.returncode, added.stderr) == (0, "")
    failed = call("describe", "nothing")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("TABLE_NOT_FOUND: ")
    assert "Traceback" not in failed.stderr
    assert call("describe").returncode == 2
    assert call("--version").stdout.startswith("streamhouse 0.")


def test_another_process_sees_the_rows_that_follow(table, warehouse_path):
    """`tail` in a process of its own prints a row that is written here."""
    script = Path(sys.executable).parent / "streamhouse"
    tail = subprocess.Popen(
        [script, "-w", warehouse_path, "tail", "t", "--from", "earliest", "-n", "51", "-o", "json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stdout is not None
        for _ in range(50):
            tail.stdout.readline()
        table.append([{"id": 777}])
        assert '"id": 777' in tail.stdout.readline()
        assert tail.wait(240) == 0
    finally:
        tail.kill()
        tail.wait()
        tail.stdout.close()


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
    name_changes.create_view(wh.storage, wh.world, view, ViewEntry("select 1", "{}"), replace=False)
    name_changes.rename_view(wh.storage, wh.world, view, renamed)
    there = str(tmp_path / "copy")
    shutil.copytree(warehouse_path, there)
    run("-w", there, "relocate", "--copy")
    copy = Warehouse(there)
    assert list(names.list_views(copy.storage, "d")) == [renamed]
    assert name_changes.require_view(copy.storage, renamed).text == "select 1"
    assert [row["table"] for row in run("-w", there, "--output", "json", "ls").lines] == ["d.t"]
    run("-w", there, "tier", "--once")
    copy.clean_dropped()
    assert copy.tables() == ["d.t"]
    assert "NAME_IS_VIEW" in run("-w", there, "head", "d.w", code=1).stderr


@pytest.fixture
def damaged(warehouse_path):
    warehouse = sh.Warehouse(warehouse_path)
    for name in ("bad", "good"):
        table = warehouse.create_table(name, "id BIGINT")
        table.append([{"id": 1}])
        if name == "bad":
            with open(warehouse.storage.local_path(commit_key(table.uuid, 2)), "ab") as file:  # noqa: PTH123
                file.write(b"?")
    return warehouse


@pytest.mark.parametrize("command", [["ls"], ["maintain"], ["tier", "--once"]])
def test_the_others_have_their_turn(run, damaged, command):
    result = run(*command, "--output", "json", code=1)
    done = {row["table"]: row for row in result.lines}
    assert "default.good" in done
    assert "CORRUPT_DATA" in result.stderr
    if command == ["ls"]:
        assert done["default.bad"]["rows"] is None
    if command[0] == "tier":
        assert damaged.table("good").lake.to_arrow().num_rows == 1


def test_a_lake_is_built_anew(run, warehouse_path):
    table = sh.Warehouse(warehouse_path).create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    run("tier", "--once")
    for info in table.storage.list(f"{table.state.lake_location}/"):
        table.storage.delete(info.key)
    assert "streamhouse retier" in run("tier", "--once", "t", code=1).stderr
    assert run("retier", "t", "--dry-run", "--output", "json").document["rows"] == 1
    assert "next: streamhouse tier --once default.t" in run("retier", "t").stdout
    run("tier", "--once", "t")
    assert sh.Warehouse(warehouse_path).table("t").lake.to_arrow()["id"].to_pylist() == [1]
