"""Rows whose files another engine writes again while an operation that read them by their offsets has not committed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from interop.foreign_engines import ENGINES
from interop.foreign_iceberg import NAME, row
from kit.round_trips import RemoteStorage
from kit.row_replacement import replace_rows
from kit.rows import ids
from kit.tables import tier
from kit.warehouses import open_warehouse
from streamhouse_spark import CommitConflictError
from streamhouse_spark.config.table_properties import ADOPTED
from streamhouse_spark.core.offset_ranges import OffsetSet
from streamhouse_spark.dml import delete, overwrite
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.table.versioning import rollback
from streamhouse_spark.table.versioning.rollback import rollback_to_version

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
OLD = list(range(6))


@pytest.fixture(params=ENGINES)
def engine(request, store, world):
    return ENGINES[request.param](store, world)


@pytest.fixture(params=["adopted", "ours"])
def table(request, engine, wh):
    """A table of ids 0 to 8, of which the first six had no offsets if it was made of a lake table."""
    if request.param == "adopted":
        found = engine.adopted()
    else:
        columns = pa.schema([pa.field("id", pa.int64(), False), ("region", pa.string()), ("n", pa.int32())])
        wh.create_table(NAME, columns, properties={"table.datalake.format": engine.format})
        found = wh.table(NAME)
        found.append([row(n) for n in OLD])
    found.append([row(n) for n in range(6, 9)])
    tier(found)
    return found


@pytest.fixture
def written_again(engine, table, other_process):
    """Writes all files of the lake again, and records the snapshot, the first time that it is called."""
    done = []

    def write() -> None:
        if not done:
            done.append(True)
            engine.rewrite()
            other = other_process().table(NAME)
            other.append([row(20)])
            tier(other)

    return write


def before(monkeypatch, module, name, meanwhile) -> None:
    """Let something happen before each call of a function."""
    right = getattr(module, name)

    def late(*given, **named):
        meanwhile()
        return right(*given, **named)

    monkeypatch.setattr(module, name, late)


def require_rows(table, engine, wanted: list[int]) -> None:
    for _ in range(2):
        assert ids(table.to_arrow()) == wanted
        tier(table)
        assert ids(table.lake.to_arrow()) == engine.ids(table) == wanted


def test_a_deletion_looks_for_them_again(table, engine, written_again, monkeypatch):
    before(monkeypatch, delete, "commit_deletion", written_again)
    assert table.delete(where=[("id", "in", [1, 7])]) == 2
    require_rows(table, engine, [0, 2, 3, 4, 5, 6, 8, 20])


def test_an_update_is_a_conflict(table, engine, written_again):
    def change() -> None:
        replace_rows(table, lambda one: one["id"] == 7, lambda _: row(30), written_again)

    with pytest.raises(CommitConflictError, match=r"^COMMIT_CONFLICT: .*another engine rewrote or dropped their files"):
        change()
    require_rows(table, engine, [*OLD, 6, 7, 8, 20])
    change()
    require_rows(table, engine, [*OLD, 6, 8, 20, 30])


def test_a_replacement_looks_for_them_again(table, engine, written_again, monkeypatch):
    before(monkeypatch, overwrite, "LogTableWriter", written_again)
    table.overwrite([row(7)], where=[("id", "in", [1, 7])])
    require_rows(table, engine, [0, 2, 3, 4, 5, 6, 7, 8, 20])


def test_a_rollback_is_a_conflict(table, engine, other_process, monkeypatch):
    table.append([row(9)])
    version = table.refresh().version
    table.append([row(10)])
    tier(table)

    def meanwhile() -> None:
        engine.rewrite()
        tier(other_process().table(NAME))

    before(monkeypatch, rollback, "_commit_rollback", meanwhile)
    with pytest.raises(CommitConflictError, match="another engine rewrote or dropped their files"):
        rollback_to_version(table, version)
    require_rows(table, engine, [*OLD, 6, 7, 8, 9, 10])


def test_a_round_of_ours_in_between_is_none(table, engine, other_process):
    table.append([row(9)])

    def tiered() -> None:
        other = other_process().table(NAME)
        other.append([row(20)])
        tier(other)

    replace_rows(table, lambda one: one["id"] in (2, 7, 9), lambda one: row(one["id"] + 30), tiered)
    require_rows(table, engine, [0, 1, 3, 4, 5, 6, 8, 20, 32, 37, 39])


def test_a_look_opens_no_file_where_all_are_ours(table, store, clock):
    """A statement beside a tiering service looks at a snapshot that was recorded meanwhile, and knows no other."""
    remote = RemoteStorage(store)
    mine = open_warehouse(remote, 99, clock).table(NAME)
    read = ReadVersion.of(mine.refresh())
    table.append([row(20)])
    tier(table)
    with remote.measured() as cost:
        delete.commit_deletion(mine, {0: OffsetSet.dense(1, 1)}, read)
    is_adopted = ADOPTED in table.state.properties
    assert any(key.endswith(".parquet") for key in cost.keys) == is_adopted
    assert cost.depth <= (13 if is_adopted else 10), cost
