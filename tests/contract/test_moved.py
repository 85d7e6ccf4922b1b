"""A warehouse that was copied or moved: it is read at once, and nothing outside it is written or deleted."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from contract.house import House, rows
from faults.sim import sim_world
from streamhouse_spark import InvalidOptionError, StreamhouseError, TableNotFoundError, WarehouseMovedError
from streamhouse_spark.lake.tiering.job import TieringJob, run_tasks_locally
from streamhouse_spark.log.catalog.names import WarehouseMetadata, read_warehouse_file
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.storage.local import LocalStorage
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.relocation import relocate
from streamhouse_spark.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.usefixtures("own_cache")

NAME = "sales.orders"
KEYED = "sales.items"
ODD = "sales.odd"
_COPIES = itertools.count(1)


@dataclass(frozen=True)
class Tree:
    """Every file below a warehouse, to the byte."""

    files: dict[str, bytes]

    @classmethod
    def of(cls, house: House) -> Tree:
        storage = house.wh.storage
        keys = [i.key for i in storage.list("") if not i.key.endswith(".lock")]
        return cls({key: storage.read(key) for key in keys})


def filled(house: House) -> dict[str, list[dict[str, object]]]:
    """A table of a log and one with a primary key, each with rows in lake and log, deletes, and two snapshots."""
    log = house.table(NAME, "id BIGINT NOT NULL, place STRING", partition_by=["place"])
    log.append([{"id": n, "place": p} for n, p in enumerate(["a", "b", "a", None])])
    house.tier(log)
    log.append([{"id": 10, "place": "b"}])
    house.tier(log)
    log.append([{"id": 11, "place": "c"}])
    keyed = house.table(KEYED, "k BIGINT NOT NULL, v STRING", primary_key=["k"], buckets=2)
    keyed.upsert([{"k": n, "v": "old"} for n in range(20)])
    house.tier(keyed)
    keyed.upsert([{"k": n, "v": "new"} for n in range(5)])
    keyed.delete([{"k": 19}])
    house.tier(keyed)
    keyed.upsert([{"k": 30, "v": "hot"}])
    odd = house.table(ODD, "id BIGINT, p STRING", partition_by=["p"])
    odd.append([{"id": 1, "p": "x" * 400}, {"id": 2, "p": "/"}])
    house.tier(odd)
    return {name: rows(house.wh.table(name).to_arrow()) for name in (NAME, KEYED, ODD)}


def place_beside(house: House) -> str:
    return f"{house.wh.url.rstrip('/')}-{next(_COPIES)}"


def opened_at(house: House, url: str) -> House:
    if house.clock is None:
        wh = Warehouse(url, house.settings)
        return House(
            wh,
            house.lake_format,
            lambda: Warehouse(url, house.settings),
            settings=house.settings,
            readers=house.readers,
        )
    world = sim_world(500 + next(_COPIES), house.clock)
    wh = Warehouse(url, storage=LocalStorage(url, fsync=False, world=world), world=world)
    return House(wh, house.lake_format, lambda: wh, house.clock)


def copied(house: House, *, moved: bool = False) -> House:
    """The warehouse at another place; with ``moved`` the first place is empty then."""
    url = place_beside(house)
    if house.clock is not None:
        (shutil.move if moved else shutil.copytree)(house.wh.url, url)
    else:
        source, target = house.wh.storage, open_storage(url, house.settings)
        for info in source.list(""):
            with target.create(info.key) as sink:
                sink.write(source.read(info.key))
            if moved:
                source.delete(info.key)
    return opened_at(house, url)


@pytest.mark.also_on_s3("iceberg")
@pytest.mark.parametrize("moved", [False, True])
def test_a_moved_warehouse_is_readable_at_once(house, moved):
    wanted = filled(house)
    snapshots = {name: house.wh.table(name).lake.snapshots().to_pylist() for name in wanted}
    lakes = {name: rows(house.wh.table(name).lake.to_arrow()) for name in wanted}
    id_of = "snapshot_id"
    first = snapshots[NAME][0][id_of]
    before = rows(house.wh.table(NAME).lake.to_arrow(as_of_snapshot=first))
    there = copied(house, moved=moved)
    for name, expected in wanted.items():
        table = there.wh.table(name)
        assert rows(table.to_arrow()) == expected
        assert rows(table.lake.to_arrow()) == lakes[name]
        paths = table.lake.files()["file_path"].to_pylist() if house.lake_format == "iceberg" else []
        assert all(path.startswith(there.wh.url) for path in paths)
    assert rows(there.wh.table(NAME).lake.to_arrow(as_of_snapshot=first)) == before


@pytest.mark.also_on_s3("paimon")
def test_a_copy_neither_writes_nor_deletes_its_original(house):
    wanted = filled(house)
    house.age()
    original = Tree.of(house)
    there = copied(house)
    for name in wanted:
        table = there.wh.table(name)
        lake = table.open_lake()
        for work in (
            lambda lake=lake: lake.expire(keep_last=1, keep_ms=0),
            lambda lake=lake: lake.remove_orphans(grace_ms=600_000),
            lambda lake=lake: lake.compact(),
            lambda lake=lake: lake.prune_metadata() if house.lake_format == "iceberg" else lake.find_durable(),
            lambda lake=lake: lake.create_or_evolve(),
            lambda lake=lake: lake.drop(purge=True),
            table.maintain,
            lambda table=table: there.tier(table),
        ):
            with pytest.raises(WarehouseMovedError, match=rf"{there.wh.url} relocate --copy"):
                work()
    assert Tree.of(house) == original
    assert {name: rows(there.wh.table(name).to_arrow()) for name in wanted} == wanted


def test_the_log_of_a_copy_is_written(house):
    filled(house)
    original = Tree.of(house)
    there = copied(house)
    there.wh.table(NAME).append([{"id": 99, "place": "z"}])
    there.wh.table(KEYED).upsert([{"k": 0, "v": "copy"}])
    assert {"id": 99, "place": "z"} in rows(there.wh.table(NAME).to_arrow())
    assert {"k": 0, "v": "copy"} in rows(there.wh.table(KEYED).to_arrow())
    assert Tree.of(house) == original


@pytest.mark.only_on_disk
def test_nothing_is_made_where_a_moved_warehouse_was(house):
    filled(house)
    there = copied(house, moved=True)
    with pytest.raises(WarehouseMovedError):
        there.tier(there.wh.table(NAME))
    assert not Path(house.wh.url).exists()


@pytest.mark.only_on_disk
def test_a_symbolic_link_is_no_other_place(house):
    wanted = filled(house)
    link = place_beside(house)
    Path(link).symlink_to(house.wh.url)
    there = opened_at(house, link)
    there.wh.table(NAME).append([{"id": 12, "place": "a"}])
    there.tier(there.wh.table(NAME))
    there.wh.table(KEYED).upsert([{"k": 1, "v": "linked"}])
    there.tier(there.wh.table(KEYED))
    there.wh.table(KEYED).maintain()
    assert rows(house.wh.table(NAME).to_arrow()) == sorted([*wanted[NAME], {"id": 12, "place": "a"}], key=repr)
    assert {"k": 1, "v": "linked"} in rows(house.wh.table(KEYED).lake.to_arrow())
    assert rows(house.foreign(house.wh.table(KEYED))) == rows(house.wh.table(KEYED).to_arrow())


@pytest.mark.only_on_disk
def test_a_copy_of_a_warehouse_without_a_stored_url_never_changes_it(house):
    """Iceberg's own metadata says where it was; a Paimon table names nothing outside."""
    wanted = filled(house)
    key = "streamhouse.json"
    path = Path(house.wh.url, key)
    found = read_warehouse_file(house.wh.storage)
    path.write_bytes(WarehouseMetadata(found.id).to_bytes())
    house.wh.table(NAME).append([{"id": 50, "place": "a"}])
    fresh = opened_at(house, house.wh.url)
    fresh.tier(fresh.wh.table(NAME))
    there = copied(house)
    original = Tree.of(house)
    assert rows(there.wh.table(KEYED).to_arrow()) == wanted[KEYED]
    there.wh.table(NAME).append([{"id": 51, "place": "a"}])
    if house.lake_format == "iceberg":
        with pytest.raises(WarehouseMovedError):
            there.tier(there.wh.table(NAME))
    else:
        there.tier(there.wh.table(NAME))
    assert Tree.of(house) == original


def test_a_round_that_was_planned_before_the_move(house):
    """Guarded in the commit too, not only where a round begins."""
    filled(house)
    there = copied(house)
    table = there.wh.table(NAME)
    table.append([{"id": 77, "place": "a"}])
    original = Tree.of(house)
    lake = table.open_lake()
    object.__setattr__(lake, "require_home", lambda doing: None)
    with pytest.raises(WarehouseMovedError):
        TieringJob(table.log, lake, world=table.world).run(
            run_tasks_locally(table.storage, table.settings, table.world)
        )
    assert Tree.of(house) == original


@contextmanager
def out_of_sight(house: House) -> Iterator[None]:
    """Hide the original, on a local disk."""
    if house.clock is None:
        yield
        return
    path, hidden = Path(house.wh.url), Path(f"{house.wh.url}-hidden")
    path.rename(hidden)
    yield
    assert not path.exists()
    hidden.rename(path)


def read_by_others(house: House, table: Table) -> list[dict[str, object]]:
    """The lake's rows for another library, but for files of Paimon with paths of their own on a store that pypaimon
    has no client for.
    """
    if house.lake_format == "paimon" and table.name == ODD and house.settings and not house.wh.url.startswith("s3"):
        return rows(table.lake.to_arrow())
    return rows(house.foreign(table))


def restored(house: House, wanted: dict[str, list[dict[str, object]]]) -> None:
    """Reads, writes, tiers, maintains and other readers go on here."""
    for name, expected in wanted.items():
        table = house.wh.table(name)
        assert rows(table.to_arrow()) == expected
        house.tier(table)
        assert read_by_others(house, table) == rows(table.lake.to_arrow()) == rows(table.to_arrow()) == expected
    keyed = house.wh.table(KEYED)
    keyed.upsert([{"k": 3, "v": "later"}, {"k": 4, "v": "later"}])
    keyed.delete([{"k": 7}])
    house.tier(keyed)
    for name in wanted:
        table = house.wh.table(name)
        table.open_lake().compact()
        house.age()
        table.open_lake().expire(keep_last=1, keep_ms=0)
        table.open_lake().remove_orphans(grace_ms=600_000)
        table.maintain()
        assert read_by_others(house, table) == rows(table.lake.to_arrow()) == rows(house.wh.table(name).to_arrow())
    assert rows(keyed.lake.to_arrow(filter=[("k", "=", 3)])) == [{"k": 3, "v": "later"}]


@pytest.mark.also_on_s3("paimon")
def test_a_move_is_made_whole(house):
    wanted = filled(house)
    old_url, first = house.wh.url, house.wh.table(NAME).lake.snapshots()["snapshot_id"].to_pylist()[0]
    before = rows(house.wh.table(NAME).lake.to_arrow(as_of_snapshot=first))
    uuids = {name: house.wh.table(name).uuid for name in wanted}
    there = copied(house, moved=True)
    planned = relocate(there.wh, dry_run=True)
    assert planned.dry_run
    with pytest.raises(WarehouseMovedError):
        there.tier(there.wh.table(NAME))
    report = relocate(there.wh)
    assert (report.moved_from, report.warehouse, report.copy) == (old_url, there.wh.url, False)
    assert {t.table: t.uuid for t in report.tables} == uuids
    fresh = opened_at(house, there.wh.url)
    assert rows(fresh.wh.table(NAME).lake.to_arrow(as_of_snapshot=first)) == before
    named = {key for key, data in Tree.of(fresh).files.items() if old_url.encode() + b"/" in data}
    assert not {key for key in named if key.endswith(f"v{_newest_version(fresh)}.metadata.json")}
    restored(fresh, wanted)
    again = relocate(fresh.wh)
    assert again.moved_from is None
    assert sum(t.files_written for t in again.tables) == 0
    if house.clock is not None:
        assert not Path(old_url).exists()


def _newest_version(house: House) -> int:
    key = f"{house.wh.table(NAME).state.lake_location}/metadata/version-hint.text"
    return int(house.wh.storage.read(key)) if house.lake_format == "iceberg" else 0


@pytest.mark.also_on_s3("iceberg")
def test_a_copy_gets_an_identity_of_its_own(house):
    wanted = filled(house)
    house.age()
    original = Tree.of(house)
    uuids = {name: house.wh.table(name).uuid for name in wanted}
    first = house.wh.table(NAME).lake.snapshots()["snapshot_id"].to_pylist()[0]
    before = rows(house.wh.table(NAME).lake.to_arrow(as_of_snapshot=first))
    there = copied(house)
    stale = there.wh.table(NAME)
    stale.refresh()
    report = relocate(there.wh, copy=True)
    assert report.copy
    fresh = opened_at(house, there.wh.url)
    assert {t.table: t.former_uuid for t in report.tables} == uuids
    assert {name: fresh.wh.table(name).uuid for name in wanted} == {t.table: t.uuid for t in report.tables}
    assert not {fresh.wh.table(name).uuid for name in wanted} & set(uuids.values())
    with pytest.raises(TableNotFoundError):
        stale.append([{"id": 1, "place": "lost"}])
    assert rows(fresh.wh.table(NAME).lake.to_arrow(as_of_snapshot=first)) == before
    with out_of_sight(house):
        restored(fresh, wanted)
    fresh.wh.drop_table(ODD)
    fresh.age()
    fresh.wh.clean_dropped(grace_ms=600_000)
    assert Tree.of(house) == original
    assert {name: rows(house.wh.table(name).to_arrow()) for name in wanted} == wanted
    house.tier(house.wh.table(KEYED))
    with pytest.raises(InvalidOptionError, match="is not a copy"):
        relocate(fresh.wh, copy=True)


def test_an_original_is_not_given_other_ids(house):
    filled(house)
    original = Tree.of(house)
    with pytest.raises(InvalidOptionError, match="is not a copy"):
        relocate(house.wh, copy=True)
    assert all(t.files_written == 0 for t in relocate(house.wh).tables)
    assert Tree.of(house) == original


@pytest.mark.only_on_disk
@pytest.mark.parametrize("lost", ["segment", "lake file", "log", "lake"])
def test_a_torn_copy_is_noticed(house, lost):
    """``cp -r`` of a warehouse that is being written copies the lake from before, or from after, the log."""
    log = house.table(NAME, "id BIGINT NOT NULL")
    log.append([{"id": n} for n in range(5)])
    house.tier(log)
    older = copied(house)
    log.append([{"id": 9}])
    house.tier(log)
    newer = copied(house)
    lake, tables = log.state.lake_location, f"tables/{log.uuid}"
    if lost == "lake":
        shutil.rmtree(f"{newer.wh.url}/{lake}")
        shutil.copytree(f"{older.wh.url}/{lake}", f"{newer.wh.url}/{lake}")
    elif lost == "log":
        shutil.rmtree(f"{newer.wh.url}/{tables}")
        shutil.copytree(f"{older.wh.url}/{tables}", f"{newer.wh.url}/{tables}")
    elif lost == "lake file":
        next(Path(newer.wh.url, lake).rglob("*.parquet")).unlink()
    else:
        log.append([{"id": n} for n in range(100_000)])
        newer = copied(house)
        found = [s for s in newer.wh.table(NAME).state.live_segments() if s.uuid]
        Path(newer.wh.url, tables, "segments", f"{found[0].uuid}.arrow").unlink()
    torn = Tree.of(newer)
    for copy in (False, True):
        with pytest.raises(StreamhouseError, match=r"copy it again|rolled back"):
            relocate(newer.wh, copy=copy)
    assert Tree.of(newer) == torn
    if lost in ("log", "lake"):  # what the error advises where no other copy can be made
        wanted = rows(newer.wh.table(NAME).to_arrow()) if lost == "lake" else [{"id": n} for n in range(5)]
        newer.wh.table(NAME).retier()
        relocate(newer.wh, copy=True)
        newer.tier(newer.wh.table(NAME))
        assert rows(newer.foreign(newer.wh.table(NAME))) == rows(newer.wh.table(NAME).to_arrow()) == wanted
