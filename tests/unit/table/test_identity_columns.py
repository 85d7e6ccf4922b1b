"""The identity column of a table: every way of writing gives rows numbers of their own, and it cannot change."""

from __future__ import annotations

import multiprocessing
import os
import shutil

import pyarrow.compute as pc
import pytest

from faults.scenarios import LAKE, PAIMON
from kit.tables import tier
from streamhouse_spark import Transaction, Warehouse, relocate
from streamhouse_spark.errors import ConstraintViolatedError, FormatVersionError, InvalidOptionError
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint

ALWAYS = {"table.identity.id": "ALWAYS"}
BY_DEFAULT = {"table.identity.id": "by default start with 10 increment by -5"}


def made(wh, name="a.t", columns="id BIGINT, v INT", properties=ALWAYS, **more):
    return wh.create_table(name, columns, properties=properties, **more)


def numbers(table):
    rows = table.to_arrow().sort_by("v").to_pylist()
    return [row["id"] for row in rows]


@pytest.mark.parametrize("lake", [LAKE, PAIMON], ids=["iceberg", "paimon"])
def test_appended_rows_have_them_in_the_log_and_in_the_lake(wh, lake):
    table = made(wh, properties={**ALWAYS, **lake})
    table.append([{"v": 1}, {"v": 2, "id": None}])
    tier(table)
    for v in range(3, 8):
        table.append([{"v": v}])
    assert numbers(table) == list(range(1, 8))
    tier(table)
    assert numbers(table.lake) == list(range(1, 8))


def test_a_writer_and_overwriting_go_on_behind_the_last(wh):
    table = made(wh, "a.t", "id BIGINT, v INT, p INT", partition_by=["p"])
    with table.writer() as writer:
        for v in range(5):
            writer.send({"v": v, "p": 1})
    assert numbers(table) == [1, 2, 3, 4, 5]
    table.overwrite_partitions([{"v": 6, "p": 1}])
    table.overwrite([{"v": 7, "p": 1}, {"v": 8, "p": 2}])
    assert numbers(table) == [7, 8]
    table.truncate()
    table.append([{"v": 9}])
    assert numbers(table)[0] > 8


def test_a_process_that_writes_row_by_row_commits_few_more_records(wh):
    table = made(wh)
    for v in range(100):
        table.append([{"v": v}])
    assert numbers(table) == list(range(1, 101))
    assert table.state.version <= 1 + 100 + 8


def test_other_processes_have_other_numbers(wh, other_process):
    tables = [made(wh), *(other_process().table("a.t") for _ in range(2))]
    of_each = [[], [], []]
    for v in range(60):
        before = set(tables[0].refresh() and tables[0].to_arrow()["id"].to_pylist())
        tables[v % 3].append([{"v": v}] * (1 + v % 4))
        tables[0].refresh()
        of_each[v % 3] += sorted(set(tables[0].to_arrow()["id"].to_pylist()) - before)
    found = tables[0].to_arrow()["id"].to_pylist()
    assert len(set(found)) == len(found) == sum(1 + v % 4 for v in range(60))
    assert all(mine == sorted(mine) for mine in of_each)


def test_given_values_are_refused_or_taken(wh):
    table = made(wh)
    version = table.refresh().version
    with pytest.raises(ConstraintViolatedError, match=r"1 of 2 rows .* column 'id', GENERATED ALWAYS .* such as 7;"):
        table.append([{"v": 1}, {"v": 2, "id": 7}])
    with table.writer() as writer, pytest.raises(ConstraintViolatedError, match="leave the column out"):
        writer.send({"v": 1, "id": 1})
    assert table.refresh().version == version
    by_default = made(wh, "a.u", properties=BY_DEFAULT)
    by_default.append([{"v": 1}, {"v": 2, "id": 7}, {"v": 3}])
    by_default.append([{"v": 4, "id": 7}])
    assert numbers(by_default) == [10, 7, 5, 7]


def test_they_end_with_64_bits(wh):
    table = made(wh, properties={"table.identity.id": f"ALWAYS START WITH {2**63 - 3} INCREMENT BY 2"})
    table.append([{"v": 1}])
    table.append([{"v": 2}])
    version = table.refresh().version
    with pytest.raises(ConstraintViolatedError, match="are exhausted"):
        table.append([{"v": 3}])
    assert table.refresh().version == version
    assert numbers(table) == [2**63 - 3, 2**63 - 1]


def test_constraints_see_identity_numbers(wh):
    table = made(wh, properties={**ALWAYS, "table.constraint.few": "id < 3"})
    table.append([{"v": 1}, {"v": 2}])
    with pytest.raises(ConstraintViolatedError, match="few"):
        table.append([{"v": 3}])
    assert numbers(table) == [1, 2]


def test_rows_that_come_back_have_their_own(wh, own_cache):
    table = made(wh)
    table.append([{"v": 1}, {"v": 2}])
    version = table.refresh().version
    table.delete(where=pc.field("v") == 1)
    table.append([{"v": 3}])
    table.rollback_to_version(version)
    assert sorted(numbers(table)) == [1, 2]
    keyed = made(wh, "a.k", "k INT NOT NULL, id BIGINT, v INT", primary_key=["k"])
    keyed.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    version = keyed.refresh().version
    keyed.delete([{"k": 1}])
    keyed.upsert([{"k": 1, "v": 5}])
    assert numbers(keyed) == [2, 3]
    keyed.rollback_to_version(version)
    assert numbers(keyed) == [1, 2]


def test_rows_by_key_keep_the_number_that_they_got(wh, own_cache):
    table = made(wh, "a.k", "k INT NOT NULL, id BIGINT, v INT, w INT", primary_key=["k"], buckets=2)
    table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    before = numbers(table)
    table.upsert([{"k": 2, "v": 3}, {"k": 3, "v": 4}, {"k": 3, "v": 5}])
    table.upsert([{"k": 1, "w": 9}, {"k": 4, "w": 9}], columns=["w"])
    after = {row["k"]: row["id"] for row in table.to_arrow().to_pylist()}
    assert [after[1], after[2]] == before
    assert len(set(after.values())) == 4
    assert None not in after.values()
    version = table.refresh().version
    table.delete([{"k": 1}, {"k": 2}])
    assert table.refresh().version == version + 1
    table.upsert([{"k": 1, "v": 1}])
    assert numbers(table)[0] > max(after.values())
    for refused, says in (
        (lambda: table.upsert([{"k": 1, "id": 1}]), "leave the column out"),
        (lambda: table.upsert([{"k": 1, "id": None}], columns=["id"]), "the identity column; leave it out"),
    ):
        with pytest.raises((InvalidOptionError, ConstraintViolatedError), match=says):
            refused()
    tier(table)
    assert sorted(numbers(table.lake)) == sorted(numbers(table))


@pytest.mark.parametrize(
    "engine",
    [{"table.merge-engine": "first_row"}, {"table.merge-engine": "aggregation"}, {"table.changelog.image": "wal"}],
    ids=lambda engine: "".join(engine.values()),
)
def test_merge_engines_keep_it(wh, own_cache, engine):
    table = made(wh, "a.k", "k INT NOT NULL, id BIGINT, v INT", {**ALWAYS, **engine}, primary_key=["k"])
    table.upsert([{"k": 1, "v": 1}])
    table.upsert([{"k": 1, "v": 2}, {"k": 2, "v": 3}])
    first, second = table.to_arrow().sort_by("k").to_pylist()
    assert first["id"] == 1 < second["id"]


@pytest.mark.parametrize(
    ("columns", "properties", "more", "says"),
    [
        ("id INT, v INT", ALWAYS, {}, "has the type int; make it a BIGINT"),
        ("id BIGINT NOT NULL, v INT", ALWAYS, {}, "has NOT NULL; leave it out"),
        ("id BIGINT DEFAULT 5, v INT", ALWAYS, {}, "has DEFAULT; leave it out"),
        ("id BIGINT, v INT", {"table.identity.x": "ALWAYS"}, {}, "found no such column"),
        ("id BIGINT, v INT", {"table.identity.id": "sometimes"}, {}, "expected ALWAYS or BY DEFAULT"),
        ("id BIGINT, v INT", {"table.identity.id": "ALWAYS INCREMENT BY 0"}, {}, "a step that is not 0"),
        ("id BIGINT, v INT", {"table.identity.id": f"ALWAYS START WITH {2**63}"}, {}, "of 64 bits"),
        ("id BIGINT, v BIGINT", {**ALWAYS, "table.identity.v": "ALWAYS"}, {}, "expected at most one in a table"),
        ("id BIGINT, v INT", {**ALWAYS, "bucket.key": "id", "bucket.num": "2"}, {}, "part of bucket.key"),
        ("id BIGINT, v INT", ALWAYS, {"partition_by": ["id"]}, "the source of a partition field"),
        ("id BIGINT, v BIGINT", {**ALWAYS, "table.generated.v": "id * 2"}, {}, "used by the generated column 'v'"),
        ("k INT NOT NULL, id BIGINT", BY_DEFAULT, {"primary_key": ["k"]}, "BY DEFAULT: rows of a primary-key table"),
        (
            "k INT NOT NULL, id BIGINT",
            {**ALWAYS, "table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "k"},
            {"primary_key": ["k"]},
            "another merge engine|versioned",
        ),
    ],
)
def test_what_cannot_be_is_refused(wh, columns, properties, more, says):
    with pytest.raises(InvalidOptionError, match=says):
        made(wh, "a.t", columns, properties, **more)


def test_an_identity_column_cannot_change(wh):
    table = made(wh)
    version = table.state.version
    for refused, says in (
        (lambda: table.rename_column("id", "x"), "'id' cannot be renamed: it is an identity column"),
        (lambda: table.drop_column("id"), "'id' cannot be dropped: it is an identity column"),
        (lambda: table.set_default("id", 3), "has DEFAULT; leave it out"),
        (lambda: table.alter(unset_properties=["table.identity.id"]), "is fixed at creation"),
        (lambda: table.alter(set_properties={"table.identity.v": "ALWAYS"}), "is fixed at creation"),
        (lambda: table.forget_transactions("streamhouse.identity.1"), "would be allocated twice"),
    ):
        with pytest.raises(InvalidOptionError, match=says):
            refused()
    assert table.refresh().version == version


def test_numbers_are_remembered_however_long_ago(wh, clock, store):
    table = made(wh, properties={**ALWAYS, "table.transactions.ttl": "1h"})
    table.append([{"v": 1}], transaction=Transaction("app", 1))
    clock.sleep_ms(10 * 3_600_000)
    table.maintain()
    assert not table.refresh().transactions
    write_checkpoint(store, table.state)
    assert read_checkpoint(store, table.uuid, table.state.version).past_transactions
    table.append([{"v": 2}])
    assert numbers(table) == [1, 2]


def test_a_copied_warehouse_goes_on_behind_the_last(tmp_path, own_cache):
    wh = Warehouse(tmp_path / "wh")
    wh.create_database("a")
    made(wh).append([{"v": 1}, {"v": 2}])
    shutil.copytree(tmp_path / "wh", tmp_path / "copy")
    relocate(tmp_path / "copy", copy=True)
    copy = Warehouse(tmp_path / "copy").table("a.t")
    copy.append([{"v": 3}])
    assert numbers(copy) == [1, 2, 3]


def test_an_older_version_of_the_package_refuses_the_table(wh, store, monkeypatch):
    table = made(wh)
    write_checkpoint(store, table.state)
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.GENERATED_VERSION - 1)
    with pytest.raises(FormatVersionError):
        read_checkpoint(store, table.uuid, table.state.version)


def _in_child(table, found):
    table.append([{"v": 100}])
    found.put(os.getpid())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
def test_a_child_has_none_of_the_numbers_of_its_parent(warehouse_path):
    table = made(Warehouse(str(warehouse_path)))
    for v in range(6):  # some are left over
        table.append([{"v": v}])
    context = multiprocessing.get_context("fork")
    found = context.Queue()
    child = context.Process(target=_in_child, args=(table, found))
    child.start()
    found.get(timeout=60)
    child.join()
    table.append([{"v": 50}])
    table.refresh()
    ours = table.to_arrow()["id"].to_pylist()
    assert len(set(ours)) == len(ours) == 8
