"""Logs whose creator died before they could be read: they go, and nothing else does that looks alike."""

from __future__ import annotations

import pytest

from streamhouse_spark import TableNotFoundError
from streamhouse_spark.core.warehouse_layout import checkpoint_key, commit_key, manifest_key, segment_key
from streamhouse_spark.log.actions import Append, Rename, SetProperties
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.dropped_tables import is_unfinished
from streamhouse_spark.log.record import Record, encode_record
from streamhouse_spark.table.versioning import branches

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)

DAY_MS = 24 * 3600 * 1000


class Died(BaseException):
    pass


def dies(*_):
    raise Died


def uuids(wh) -> set[str]:
    return {info.key.split("/")[1] for info in wh.storage.list("tables/") if "/floors/" not in info.key}


@pytest.mark.parametrize("kind", ["clone", "branch"])
def test_a_log_without_a_checkpoint_goes_after_the_grace(wh, clock, monkeypatch, kind):
    table = wh.create_table("t", "id BIGINT")
    table.append([{"id": 1}])
    monkeypatch.setattr(branches, "write_checkpoint", dies)
    with pytest.raises(Died):
        wh.clone_table("t", "c") if kind == "clone" else table.create_branch("b")
    monkeypatch.undo()
    (left,) = uuids(wh) - {table.uuid}
    wh.clean_dropped()
    assert left in uuids(wh), "its creator may still be at it"
    clock.advance(2 * DAY_MS)
    assert wh.clean_dropped(dry_run=True).deleted == []
    wh.clean_dropped()
    with pytest.raises(TableNotFoundError):
        CommitLog(wh.storage, left, wh.world).refresh()
    clock.advance(2 * DAY_MS)
    wh.clean_dropped()
    assert uuids(wh) == {table.uuid}
    assert table.to_arrow()["id"].to_pylist() == [1]


def test_a_creator_that_slept_is_refused(wh, clock, monkeypatch):
    table = wh.create_table("t", "id BIGINT")
    write = branches.write_checkpoint
    slept = []

    def late(*arguments, **named):
        if not slept:
            slept.append(True)
            clock.advance(2 * DAY_MS)
            wh.clean_dropped()
        write(*arguments, **named)

    monkeypatch.setattr(branches, "write_checkpoint", late)
    with pytest.raises(TableNotFoundError):
        wh.clone_table("t", "c")
    assert not wh.exists("c")
    for _ in range(3):
        clock.advance(2 * DAY_MS)
        wh.clean_dropped()
        table.maintain()
    assert uuids(wh) == {table.uuid}
    assert table.refresh().tags == {}


UUID = "0" * 32


def record(number, *actions) -> bytes:
    return encode_record(Record(number, UUID, "a" * 32, 1, actions), "b" * 32).data


@pytest.mark.parametrize(
    ("files", "is_one"),
    [
        ({}, False),
        ({commit_key(UUID, 7): record(7, Rename("d.t"))}, True),
        ({commit_key(UUID, 7): record(7, SetProperties({"table.branch": "{}"}))}, True),
        ({manifest_key(UUID, UUID): b"of a first record"}, True),
        ({commit_key(UUID, 7): record(7, Rename("d.t")), manifest_key(UUID, UUID): b""}, True),
        ({commit_key(UUID, 7): record(7, Rename("d.t")), segment_key(UUID, "c" * 32): b""}, False),
        ({commit_key(UUID, 7): record(7, Rename("d.t")), checkpoint_key(UUID, 6): b"damaged"}, False),
        ({commit_key(UUID, n): record(n, Rename("d.t")) for n in (7, 8)}, False),
        ({commit_key(UUID, 7): record(7, SetProperties({"a": "b"}))}, False),
        ({commit_key(UUID, 7): record(7, Append(()))}, False),
        ({commit_key(UUID, 7): b"damaged"}, False),
        ({manifest_key(UUID, "d" * 32): b"of another record"}, False),
    ],
)
def test_only_what_looks_like_a_beginning_is_one(wh, files, is_one):
    for key, data in files.items():
        wh.storage.put(key, data)
    assert is_unfinished(wh.storage, UUID, wh.storage.now_ms()) is is_one
    assert not is_unfinished(wh.storage, UUID, wh.storage.now_ms() - 1)
