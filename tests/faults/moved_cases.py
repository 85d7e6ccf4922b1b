"""Tests that find mistakes about moved warehouses, and such mistakes to plant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq

from faults.plants import patched, plant
from faults.test_relocation_calls import at, filled, opened, tier
from streamhouse_spark import LakeMismatchError, Table, WarehouseMovedError, relocate
from streamhouse_spark.lake.iceberg import relocation as iceberg_relocate
from streamhouse_spark.lake.iceberg.catalog import FileCatalog
from streamhouse_spark.lake.iceberg.file_io import StorageFileIO
from streamhouse_spark.lake.parquet.access import StorageFiles
from streamhouse_spark.log.lifecycle import copying
from streamhouse_spark.log.lifecycle.home import Home
from streamhouse_spark.warehouse import relocation


def _moved(*, copy: bool) -> Table:
    storage = at(filled("iceberg", keyed=True), "second")
    relocate(opened(storage, 3), copy=copy)
    return opened(storage, 4).table("t")


def a_round_away_from_home() -> None:
    """It is refused by the round or, where that does not look, by the lake's commit."""
    table = opened(at(filled("iceberg", keyed=False), "second"), 3).table("t")
    before = {info.key for info in table.storage.list("lake/")}
    refused = False
    try:
        tier(table)
    except WarehouseMovedError:
        refused = True
    assert refused
    assert {info.key for info in table.storage.list("lake/")} == before


def a_deletion_outside() -> None:
    table = opened(at(filled("iceberg", keyed=False), "second"), 3).table("t")
    keys = {info.key for info in table.storage.list("")}
    with suppress(LakeMismatchError):
        StorageFileIO(table.storage).delete(f"memory://first/{min(keys)}")
    assert {info.key for info in table.storage.list("")} == keys


def a_relocated_table() -> None:
    """Every name, also those within files of deleted positions, is of a file that lies here."""
    table = _moved(copy=False)
    files = StorageFiles(table.storage)
    lake = table.lake.metadata("all_files").to_pylist()
    root = f"{table.storage.url}/"
    assert lake
    for file in lake:
        assert file["file_path"].startswith(root)
        if file["content"] == 1:
            named = pq.read_table(files.open_input(file["file_path"]))["file_path"].to_pylist()
            assert named
            assert all(str(name).startswith(root) for name in named)


def a_writer_at_a_copy_while_it_becomes_another() -> None:
    """A row that it was told is stored is there, or it is told that its table is gone."""
    storage = at(filled("iceberg", keyed=False), "second")
    writer = opened(storage, 7).table("t")
    writer.refresh()
    relocate(opened(storage, 3), copy=True)
    told = True
    try:
        writer.append([{"id": 77, "p": "y"}])
    except Exception:  # noqa: BLE001 - whatever it is told, it was told
        told = False
    assert not told or 77 in opened(storage, 4).table("t").to_arrow()["id"].to_pylist()


@plant
def lakes_of_moved_warehouses_are_written() -> Iterator[None]:
    with patched((Home, "require", lambda *_: None), (FileCatalog, "_require_home", lambda *_: None)):
        yield


@plant
def files_are_deleted_by_the_key_behind_any_root() -> Iterator[None]:
    def delete(self: StorageFileIO, location: Any) -> None:
        self.files.storage.delete(str(location).partition("://")[2].partition("/")[2])

    with patched((StorageFileIO, "delete", delete)):
        yield


@plant
def manifests_are_left_naming_the_old_place() -> Iterator[None]:
    with patched((iceberg_relocate, "moved_record", lambda record, _: dict(record))):
        yield


@plant
def deleted_positions_are_left_naming_the_old_place() -> Iterator[None]:
    def kept(files: StorageFiles, where: str, _location: str, _move: Any) -> tuple[str, int]:
        return where, files.storage.size_bytes(files.key_of(where))

    with patched((iceberg_relocate, "_renamed_positions", kept)):
        yield


@plant
def a_log_that_was_copied_takes_more_rows() -> Iterator[None]:
    def copy_log(storage: Any, world: Any, old_uuid: str, new_uuid: str) -> None:
        state = copying.CommitLog(storage, old_uuid, world).refresh()
        copying._Copy(storage, old_uuid, new_uuid).make(state)

    with patched((relocation, "copy_log", copy_log)):
        yield


MOVED_FINDERS = {
    "lakes_of_moved_warehouses_are_written": a_round_away_from_home,
    "files_are_deleted_by_the_key_behind_any_root": a_deletion_outside,
    "manifests_are_left_naming_the_old_place": a_relocated_table,
    "deleted_positions_are_left_naming_the_old_place": a_relocated_table,
    "a_log_that_was_copied_takes_more_rows": a_writer_at_a_copy_while_it_becomes_another,
}
