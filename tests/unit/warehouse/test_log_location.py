"""Tables whose log lies in another store than the warehouse: `table.log.location`."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest

from faults.faulty_storage import FaultyStorage
from kit.round_trips import RemoteStorage
from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import (
    CorruptDataError,
    FormatVersionError,
    InvalidOptionError,
    StorageError,
    Table,
    TableNotFoundError,
    Warehouse,
    WarehouseMovedError,
    relocate,
)
from streamhouse_spark.cli.diagnostics import check_warehouse
from streamhouse_spark.cli.table_commands import build_description
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import log_location_key, log_owner_key, may_have_external_log, table_prefix
from streamhouse_spark.log.catalog import log_locations, names
from streamhouse_spark.log.catalog.log_locations import LogLocationResolver, create_table_uuid, log_settings
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import decode_frame
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS
from streamhouse_spark.storage.base import url_of
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.storage.routing import make_routing_storage
from streamhouse_spark.table_handle import log_url
from streamhouse_spark.warehouse.creation import make_create_action
from streamhouse_spark.warehouse.replacement import publish_table, stage_table
from streamhouse_spark.write.auto_compaction import compact_inline_rows

NAME = "sales.orders"
COLUMNS = "id BIGINT, text STRING"


@pytest.fixture
def fast(tmp_path) -> Path:
    return tmp_path / "fast"


@pytest.fixture
def wh(tmp_path) -> Warehouse:
    return Warehouse(tmp_path / "wh")


@pytest.fixture
def table(wh, fast):
    return wh.create_table(NAME, COLUMNS, properties={"table.log.location": str(fast)})


@pytest.fixture
def keyed(wh, fast):
    return wh.create_table(
        "sales.stock", COLUMNS, primary_key=["id"], buckets=2, properties={"table.log.location": str(fast)}
    )


def write(table, *ids: int) -> None:
    rows = [{"id": i, "text": f"row {i}"} for i in ids]
    table.upsert(rows) if table.state.primary_key else table.append(rows)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_log_lies_there_and_the_lake_and_the_name_here(wh, table, fast, tmp_path):
    write(table, 1, 2)
    tier(table)
    write(table, 3)
    folder = table_prefix(table.uuid)
    in_warehouse = files(tmp_path / "wh")
    assert [key for key in in_warehouse if key.startswith("tables/")] == [log_location_key(table.uuid)]
    assert any(key.startswith("lake/sales/orders/data/") for key in in_warehouse)
    assert "sales/orders/names/00000001.json" in in_warehouse
    assert all(key.startswith(folder) for key in files(fast))
    assert {f"{folder}commits/{1:020d}.json", log_owner_key(table.uuid)} <= set(files(fast))
    again = Warehouse(tmp_path / "wh").table(NAME)
    assert ids(again) == [1, 2, 3]
    assert sorted(again.lake.to_arrow()["id"].to_pylist()) == [1, 2]
    assert again.properties.log_location == str(fast)


def test_a_keyed_table_has_its_log_elsewhere(keyed, fast, tmp_path):
    write(keyed, *range(8))
    tier(keyed)
    keyed.delete([{"id": 0}])
    other = Warehouse(tmp_path / "wh").table("sales.stock")
    assert ids(other) == list(range(1, 8))
    assert other.lookup([{"id": 3}])["text"].to_pylist() == ["row 3"]
    assert not [key for key in files(tmp_path / "wh") if "/commits/" in key or "/segments/" in key]


def test_many_tables_share_a_place_and_a_name_can_be_used_again(wh, table, fast):
    write(table, 1)
    wh.drop_table(NAME)
    again = wh.create_table(NAME, COLUMNS, properties={"table.log.location": str(fast)})
    write(again, 7)
    assert ids(again) == [7]
    assert ids(wh.undrop_table(NAME, to="sales.former")) == [1]
    assert wh.tables() == ["sales.former", NAME]


def test_dropped_tables_are_cleaned_there_and_their_uuid_stays_dead(wh, table, fast, monkeypatch):
    write(table, 1)
    compact_inline_rows(table)
    wh.drop_table(NAME)
    began = wh.storage.now_ms()
    for steps in (1, 2):
        monkeypatch.setattr(type(wh.storage), "now_ms", lambda _, n=steps: began + n * (GRACE_MS + 60_000) * 2)
        wh.clean_dropped()
    left = {Path(key).parts[2] for key in files(fast)}
    assert left == {"floors", "owner.json"}
    with pytest.raises(TableNotFoundError):
        table.append([{"id": 2, "text": "late"}])


def test_orphans_are_found_there(wh, table, fast):
    write(table, 1)
    orphan = fast / f"{table_prefix(table.uuid)}segments/{'f' * 32}.arrow"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"left behind")
    os.utime(orphan, (0, 0))
    report = table.maintain()
    assert report.cleaned.condemned == [f"{table_prefix(table.uuid)}segments/{'f' * 32}.arrow"]


def test_it_is_pickled_with_the_way_to_its_log(table):
    write(table, 1)
    assert ids(pickle.loads(pickle.dumps(table))) == [1]


class TestPlaces:
    def refused(self, wh, where, match, error=InvalidOptionError) -> None:
        before = files(Path(wh.url)) if Path(wh.url).exists() else None
        with pytest.raises(error, match=match):
            wh.create_table("sales.new", COLUMNS, properties={"table.log.location": str(where)})
        assert (files(Path(wh.url)) if Path(wh.url).exists() else None) == before

    def test_unfit_ones_are_refused_before_anything_is_written(self, wh, tmp_path):
        self.refused(wh, tmp_path / "wh" / "fast", "overlaps the warehouse")
        self.refused(wh, tmp_path / "wh", "overlaps the warehouse")
        self.refused(wh, tmp_path, "overlaps the warehouse")
        self.refused(wh, "fast", "expected an absolute path or a URL")
        self.refused(wh, "", "expected an absolute path or a URL")
        self.refused(wh, "ftp://host/logs", "scheme ftp: is not supported")
        self.refused(wh, "s3://AKIAIOSFODNN7EXAMPLE:secretsecret@bucket/logs", "looks like a credential")
        assert not (tmp_path / "wh").exists()

    def test_a_link_into_the_warehouse_is_seen_through(self, wh, tmp_path):
        wh.create_table("a.t", COLUMNS)
        (tmp_path / "link").symlink_to(tmp_path / "wh")
        self.refused(wh, tmp_path / "link" / "fast", "overlaps the warehouse")

    def test_a_log_location_inside_another_warehouse_is_rejected(self, wh, tmp_path):
        Warehouse(tmp_path / "other").create_table("a.t", COLUMNS)
        self.refused(wh, tmp_path / "other", "is a warehouse, whose")

    def test_a_log_location_inside_another_log_is_rejected(self, wh, table, fast):
        self.refused(wh, fast / "tables" / table.uuid, "is in the log of a table")

    def test_a_log_location_inside_the_lake_is_rejected(self, tmp_path):
        wh = Warehouse(tmp_path / "wh", {"lake.iceberg.catalog.warehouse": str(tmp_path / "lake")})
        self.refused(wh, tmp_path / "lake" / "logs", "is in the lake's location")

    def test_a_store_without_put_if_absent(self, tmp_path, monkeypatch):
        wh = Warehouse(tmp_path / "wh")
        hot = MemoryStorage(World())
        monkeypatch.setattr(hot, "check_writable", lambda: (_ for _ in ()).throw(StorageError("ignores If-None-Match")))
        monkeypatch.setattr(log_locations, "open_storage", lambda *_: hot)
        self.refused(wh, "gs://fast/logs", "ignores If-None-Match", StorageError)

    def test_the_location_of_a_log_is_fixed(self, table):
        with pytest.raises(InvalidOptionError, match=r"table\.log\.location is fixed .* create a new table and copy"):
            table.alter_properties({"table.log.location": "/elsewhere"})
        with pytest.raises(InvalidOptionError, match=r"table\.log\.location is fixed"):
            table.alter_properties(removed=["table.log.location"])


class TestElsewhere:
    """A warehouse that was moved or copied: both name the same log, which belongs to one."""

    def test_a_copy_reads_and_does_not_write_before_it_is_relocated(self, wh, table, tmp_path):
        write(table, 1)
        shutil.copytree(tmp_path / "wh", tmp_path / "copy")
        copy = Warehouse(tmp_path / "copy")
        assert ids(copy.table(NAME)) == [1]
        with pytest.raises(WarehouseMovedError, match=r"relocate --copy"):
            write(copy.table(NAME), 2)
        with pytest.raises(WarehouseMovedError):
            copy.drop_table(NAME)
        assert ids(wh.table(NAME)) == [1]

    def test_a_copy_gets_a_log_of_its_own(self, wh, table, keyed, fast, tmp_path):
        write(table, 1)
        tier(table)
        write(table, 2)
        write(keyed, 5, 6)
        shutil.copytree(tmp_path / "wh", tmp_path / "copy")
        before = files(fast)
        relocate(tmp_path / "copy", copy=True)
        assert files(fast) == before
        copy = Warehouse(tmp_path / "copy")
        copied = copy.table(NAME)
        write(copied, 3)
        tier(copied)
        assert (ids(copied), ids(copy.table("sales.stock"))) == ([1, 2, 3], [5, 6])
        assert "table.log.location" not in copied.state.properties
        assert not may_have_external_log(copied.uuid)
        write(wh.table(NAME), 4)
        assert (ids(wh.table(NAME)), ids(copied)) == ([1, 2, 4], [1, 2, 3])
        shutil.rmtree(fast)
        assert ids(Warehouse(tmp_path / "copy").table(NAME)) == [1, 2, 3]

    def test_a_moved_warehouse_takes_its_logs_with_it(self, wh, table, tmp_path):
        write(table, 1)
        tier(table)
        shutil.move(tmp_path / "wh", tmp_path / "moved")
        with pytest.raises(WarehouseMovedError, match=r"moved relocate`"):
            write(Warehouse(tmp_path / "moved").table(NAME), 2)
        relocate(tmp_path / "moved")
        moved = Warehouse(tmp_path / "moved").table(NAME)
        write(moved, 2)
        tier(moved)
        assert ids(moved) == [1, 2]

    def test_two_warehouses_share_a_place(self, table, fast, tmp_path):
        other = Warehouse(tmp_path / "other")
        theirs = other.create_table(NAME, COLUMNS, properties={"table.log.location": str(fast)})
        write(table, 1)
        write(theirs, 2)
        other.drop_table(NAME)
        other.clean_dropped()
        assert ids(table) == [1]

    def test_a_folder_of_others_is_not_written(self, table, fast, tmp_path):
        write(table, 1)
        owner = fast / log_owner_key(table.uuid)
        kept = owner.read_bytes()
        owner.unlink()
        with pytest.raises(CorruptDataError, match=r"owner\.json is missing"):
            write(Warehouse(tmp_path / "wh").table(NAME), 2)
        other = Warehouse(tmp_path / "other").create_table(
            NAME, COLUMNS, properties={"table.log.location": str(tmp_path / "fast2")}
        )
        owner.write_bytes((tmp_path / "fast2" / log_owner_key(other.uuid)).read_bytes())
        with pytest.raises(CorruptDataError, match="another warehouse or table"):
            write(Warehouse(tmp_path / "wh").table(NAME), 2)
        owner.write_bytes(kept)
        write(Warehouse(tmp_path / "wh").table(NAME), 2)

    def test_without_a_warehouse_no_log_is_begun(self, wh, table, fast, tmp_path):
        before = files(fast)
        Path(wh.url, "streamhouse.json").unlink()
        with pytest.raises(CorruptDataError, match="was the warehouse deleted"):
            create_table_uuid(wh.storage, World(), {"table.log.location": str(fast)})
        assert files(fast) == before

    def test_a_location_of_another_table_is_noticed(self, wh, table, keyed):
        place = Path(wh.url)
        (place / log_location_key(table.uuid)).write_bytes((place / log_location_key(keyed.uuid)).read_bytes())
        with pytest.raises(CorruptDataError, match="is of another table"):
            Warehouse(wh.url).table(NAME)
        assert Warehouse(wh.url).table("sales.stock").to_arrow().num_rows == 0


class TestRequests:
    @pytest.fixture
    def hot(self, world):
        return MemoryStorage(world)

    def warehouse(self, home, hot, world) -> Warehouse:
        return Warehouse(
            "wh", storage=make_routing_storage(home, LogLocationResolver(home, {}, world, lambda _: hot)), world=world
        )

    @pytest.fixture
    def made(self, memory, hot, world) -> Warehouse:
        monkey = pytest.MonkeyPatch()
        monkey.setattr(MemoryStorage, "url", property(lambda self: "memory://hot" if self is hot else "memory://home"))
        wh = self.warehouse(memory, hot, world)
        plain = {"table.datalake.enabled": "false"}
        wh.create_table("plain.t", "id INT", properties=plain).append([{"id": 1}])
        for name in ("a", "b", "c"):
            there = wh.create_table(f"fast.{name}", "id INT", properties={**plain, "table.log.location": "/hot"})
            there.append([{"id": 1}])
        yield wh
        monkey.undo()

    def test_other_tables_cost_nothing_more(self, made, memory, hot, world):
        path, plain, remote = TablePath("plain", "t"), RemoteStorage(memory), RemoteStorage(memory)
        with plain.measured() as before:
            log = CommitLog(plain, names.resolve_in_one_request(plain, path).uuid, world)
            assert log.refresh().num_rows == 1
            Table(plain, {}, path, log, world).append([{"id": 2}])
        with remote.measured() as cost:
            self.warehouse(remote, hot, world).table("plain.t").append([{"id": 3}])
        assert not any("location.json" in key or "owner.json" in key for key in cost.keys)
        assert (cost.requests, cost.depth) == (before.requests, before.depth)

    def test_its_own_location_is_asked_for_once(self, made, memory, hot, world):
        remote, fast = FaultyStorage(memory), FaultyStorage(hot)
        wh = self.warehouse(remote, fast, world)
        table = wh.table("fast.a")
        assert [key for _, _, key in remote.trace if "tables/" in key] == [log_location_key(table.uuid)]
        assert log_owner_key(table.uuid) not in [key for _, _, key in fast.trace]
        asked = len(remote.trace)
        table.append([{"id": 2}])
        table.append([{"id": 3}])
        assert remote.trace[asked:] == []
        assert [key for _, _, key in fast.trace].count(log_owner_key(table.uuid)) == 1

    def test_a_listing_finds_all_locations_at_once(self, made, memory, hot, world):
        remote = RemoteStorage(memory)
        wh = self.warehouse(remote, hot, world)
        with remote.measured() as cost:
            assert wh.tables() == ["fast.a", "fast.b", "fast.c", "plain.t"]
        assert sum("location.json" in key for key in cost.keys) == 3
        assert cost.depth <= 6, cost


def test_an_older_release_refuses_its_name(table, wh):
    key = "sales/orders/names/00000001.json"
    data = wh.storage.read(key)
    with pytest.raises(FormatVersionError, match="version 2"):
        decode_frame("name", data, key)
    assert decode_frame("name", data, key, newest=names.PLACED_VERSION).header["uuid"] == table.uuid


def test_settings_of_the_other_store(tmp_path):
    given = {"s3.endpoint": "https://a", "s3.region": "x", "gcs.project-id": "p", "lake.x": "1"}
    assert log_settings(given) == given
    own = {"log.s3.endpoint": "https://b"}
    assert log_settings({**given, **own}) == {"s3.endpoint": "https://b", "gcs.project-id": "p", "lake.x": "1"}
    with pytest.raises(InvalidOptionError, match=r"log\.endpoint"):
        Warehouse(tmp_path, {"log.endpoint": "https://b"})


def test_messages_name_the_place(table, wh, fast):
    assert url_of(wh.storage, f"{table_prefix(table.uuid)}commits/x").startswith(str(fast))
    assert url_of(wh.storage, "streamhouse.json") == f"{wh.url}/streamhouse.json"


def test_the_doctor_looks_at_the_other_store(table, fast, wh):
    found = {(f.check, f.level) for f in check_warehouse(wh.url, {}, World())}
    assert (f"put-if-absent of {fast}", "ok") in found


def test_a_description_has_the_location_of_the_log(table, fast):
    assert build_description(table)["log"] == f"{fast}/tables/{table.uuid}"
    assert log_url(table) == build_description(table)["log"]


def test_a_log_is_moved_by_a_new_table(wh, table, tmp_path):
    write(table, 1, 2)
    there = {"table.log.location": str(tmp_path / "faster")}
    wh.create_table("sales.next", COLUMNS, properties=there).append(table.to_arrow())
    wh.drop_table(NAME)
    wh.rename_table("sales.next", NAME)
    moved = Warehouse(wh.url).table(NAME)
    assert ids(moved) == [1, 2]
    assert moved.properties.log_location == str(tmp_path / "faster")


def test_the_files_are_those_of_the_format(table, wh, fast):
    """They lie on users' disks, so they are read for ever."""
    file = decode_frame("warehouse", wh.storage.read("streamhouse.json"), "").header
    place = (Path(wh.url) / log_location_key(table.uuid)).read_bytes()
    assert decode_frame("location", place, "").header == {
        "table": table.uuid,
        "warehouse": file["id"],
        "url": str(fast),
    }
    owner = (fast / log_owner_key(table.uuid)).read_bytes()
    assert decode_frame("owner", owner, "").header == {"warehouse": file["id"], "url": wh.url, "table": table.uuid}
    assert table.uuid[12:16] == "810c"


def test_a_table_that_takes_the_place_of_another(wh, table, tmp_path):
    table.append([{"id": 1, "text": "a"}])
    path, place = TablePath("sales", "orders"), tmp_path / "other"
    create = make_create_action(path, "n INT", (), (), None, {"table.log.location": str(place)})
    staged = stage_table(wh, path, create)
    staged.append([{"n": 1}])
    publish_table(wh, path, staged.uuid, table.uuid)
    assert Warehouse(wh.url).table(NAME).to_arrow().to_pylist() == [{"n": 1}]
    assert may_have_external_log(staged.uuid)
    assert any(place.rglob("*.json"))
    assert wh.undrop_table(NAME, uuid=table.uuid, to="sales.old").to_arrow().num_rows == 1
