"""Relocation of a moved warehouse, or a new identity for a copied one.

**Commit point:** ``streamhouse.json`` with the current URL, and for a copy with a new id. Before it each table's lake
has its own commit point, and in a copy each log. Finished work is not repeated, so the same call continues an
interrupted run. Until then the warehouse counts as moved.

Nothing outside the opened warehouse is written or deleted. Files that metadata names elsewhere are read here, at the
same path below this root.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from streamhouse_spark.config.table_properties import BRANCH
from streamhouse_spark.core.argument_validation import validate_arguments
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import (
    RELOCATION_KEY,
    TABLES_PREFIX,
    WAREHOUSE_KEY,
    is_placed,
    is_same_place,
    parse_table_name,
    plain_root,
)
from streamhouse_spark.errors import (
    CorruptDataError,
    InvalidOptionError,
    LakeMismatchError,
    ObjectNotFoundError,
    SnapshotExpiredError,
    StorageError,
    TableNotFoundError,
    WarehouseNotFoundError,
    quote,
)
from streamhouse_spark.lake.base import LakeRelocation
from streamhouse_spark.lake.formats import open_lake_table
from streamhouse_spark.lake.tiering.record_snapshot import lake_is_ahead
from streamhouse_spark.log.archive.pages import ArchiveObjectKeys
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.branches import find_branches, list_clones
from streamhouse_spark.log.catalog.log_locations import log_locations_of
from streamhouse_spark.log.catalog.names import WarehouseMetadata, read_warehouse_file
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.framing import decode_frame, encode_frame
from streamhouse_spark.log.log_copy import copy_log
from streamhouse_spark.log.object_existence import list_referenced_keys
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.put_if_absent import PutOutcome, Slot

if TYPE_CHECKING:
    from streamhouse_spark.warehouse.warehouse import Warehouse

logger = logging.getLogger(__name__)

Progress = Callable[[int, int, str], None]
"""A callback: number of finished tables, number of all tables, name of the next."""


@dataclass(frozen=True, slots=True)
class RelocatedTable:
    table: str
    uuid: str
    """The table's current uuid."""
    former_uuid: str
    lake: str | None
    """Current location of the lake table; None for a table without one."""
    moved_from: str | None
    """The former root in the lake's metadata; None if it was the current one, or there was none."""
    files_written: int


@dataclass(frozen=True, slots=True)
class RelocateReport:
    """Changes that `relocate` made, or with ``dry_run`` would make."""

    warehouse: str
    moved_from: str | None
    """The former root; None if the warehouse was not moved."""
    copy: bool
    dry_run: bool
    tables: tuple[RelocatedTable, ...]


@dataclass(frozen=True, slots=True)
class _Identities:
    """The ids of a copy. They are stored first, so that each run uses the same ones."""

    warehouse_id: str
    tables: dict[str, str]
    """Uuid of the original's table → uuid of the copy's."""


@validate_arguments
def relocate(
    warehouse: str | os.PathLike[str] | Warehouse,
    settings: Mapping[str, str] | None = None,
    *,
    copy: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RelocateReport:
    """Update a warehouse that was moved as a whole, or with ``copy`` give a copy its own identity.

    Metadata with old locations is rewritten, so that other engines can open the lake tables at their new location: for
    Iceberg tables the metadata, manifest lists, manifests and position delete files of all snapshots, for Paimon tables
    the manifests with absolute paths. Data files are unchanged. A copy gets a new id, and each of its tables a new
    uuid, so that streams, transactions and caches of the original do not apply to it. Its logs are rewritten under the
    new uuids, including segments; the old ones are deleted after the grace period, with the dropped tables.

    The original location is neither read nor written. Nothing else may write to the warehouse in the meantime. Safe to
    repeat; after a crash the same call continues. Lake tables in an external catalog stay there; such a warehouse
    cannot become a copy. ``settings`` are those of `Warehouse`.

    **Commit point:** ``streamhouse.json``, see the module.

    Raises:
        WarehouseNotFoundError: there is no warehouse.
        InvalidOptionError: ``copy`` of a warehouse at its original location.
        CorruptDataError: the copy lacks a file, or log and lake are of different times; nothing was written.
        LakeMismatchError: ``copy`` of a table whose lake is in an external catalog.
        CommitConflictError, CommitStateUnknownError, StorageError: run it again.
    """
    from streamhouse_spark.warehouse.warehouse import Warehouse

    if progress is not None and not callable(progress):
        raise InvalidOptionError(f"progress is {quote(progress)}, expected a function or None")
    opened = warehouse if isinstance(warehouse, Warehouse) else Warehouse(warehouse, settings)
    return _Relocation(opened, copy=copy, dry_run=dry_run).run(progress or (lambda *_: None))


class _Relocation:
    def __init__(self, warehouse: Warehouse, *, copy: bool, dry_run: bool) -> None:
        self._warehouse = warehouse
        self._storage, self._settings, self._world = warehouse.storage, warehouse.settings, warehouse.world
        self._url = plain_root(warehouse.url)
        self._copy = copy
        self._dry_run = dry_run

    def run(self, progress: Progress) -> RelocateReport:
        file = read_warehouse_file(self._storage)
        if file is None:
            raise WarehouseNotFoundError(f"{self._url} holds no streamhouse.json: there is no warehouse to relocate")
        stored_identities: _Identities | None = None
        with suppress(ObjectNotFoundError):
            stored_identities = self._read_identities()
        if stored_identities is not None and stored_identities.warehouse_id == file.id:
            self._storage.delete(RELOCATION_KEY)  # everything else is done
            return RelocateReport(self._url, None, self._copy, self._dry_run, ())
        self._require_relocatable(file, stored_identities)
        states = list(self._iter_states(stored_identities))
        self._require_no_clones_or_branches(states)
        lakes = [self._open_lake(state) for state in states]
        for state, lake in zip(states, lakes, strict=True):
            self._require_whole(state, lake)
        roots = [lake.recorded_root() if lake is not None else None for lake in lakes]
        moved_from = next((root for root in roots if root is not None), None)
        if file.url is not None:
            moved_from = None if is_same_place(file.url, self._url) else file.url
        if self._dry_run:
            return self._report(moved_from, states, lakes, roots, {})
        identities = stored_identities or (self._store_identities(states) if self._copy else None)
        new_uuids = identities.tables if identities is not None else {}
        for i, (state, lake) in enumerate(zip(states, lakes, strict=True)):
            progress(i, len(states), state.name)
            self._relocate(state, lake, new_uuids.get(state.table_uuid))
        self._finish(file, identities)
        return self._report(moved_from, states, lakes, roots, new_uuids)

    def _require_relocatable(self, file: WarehouseMetadata, identities: _Identities | None) -> None:
        if identities is not None and not self._copy:
            raise InvalidOptionError(
                f"{self._url} is being given ids of its own by a run that was interrupted; go on with it: "
                f"`streamhouse -w {self._url} relocate --copy`"
            )
        if self._copy and identities is None and file.url is not None and is_same_place(file.url, self._url):
            raise InvalidOptionError(
                f"{self._url} is no copy: it was written here; copy the warehouse, and relocate the copy with --copy"
            )

    def _require_no_clones_or_branches(self, states: list[TableState]) -> None:
        if self._copy and (table_names := sorted(state.name for state in states if find_branches(state))):
            raise InvalidOptionError(
                f"{', '.join(table_names)} of {self._url} has branches, which are known by uuids that a copy would "
                "change; publish or drop the branches, and copy the warehouse then"
            )
        if self._copy and (table_names := sorted(state.name for state in states if list_clones(state))):
            raise InvalidOptionError(
                f"{', '.join(table_names)} of {self._url} has clones, which are known by uuids that a copy would "
                "change; drop the clones, clean the warehouse after the grace, and copy it then"
            )

    # -- looking --------------------------------------------------------------------------------------------------

    def _iter_states(self, identities: _Identities | None) -> Iterator[TableState]:
        """Yield all tables that can be opened or restored; in a continued run those that it started with."""
        ours = set(identities.tables.values()) if identities is not None else set()
        # A log in another store leaves nothing here under its old uuid.
        uuids = {*self._storage.list_names(TABLES_PREFIX), *(identities.tables if identities is not None else ())}
        for uuid in sorted(uuids - ours):
            log = CommitLog(self._storage, uuid, self._world)
            try:
                state = log.refresh()
            except (TableNotFoundError, ObjectNotFoundError):
                state = None
            except CorruptDataError as error:  # it must not hide the others; its lake is unchanged
                logger.warning("table %s is damaged and left as it is: %s", uuid, error)
                continue
            if identities is not None and uuid in identities.tables and (state is None or state.buried):
                # An earlier run ended the old log.
                finished = CommitLog(self._storage, identities.tables[uuid], self._world).refresh()
                yield replace(finished, table_uuid=uuid, former_uuids=finished.former_uuids[:-1], buried=True)
            elif state is not None and not state.buried and BRANCH not in state.properties:  # it has no lake of its own
                yield state

    def _open_lake(self, state: TableState) -> LakeRelocation | None:
        properties = state.parsed
        if not properties.datalake_enabled and state.recorded_lake is None:
            return None
        lake = open_lake_table(self._storage, self._settings, state, self._world).relocation()
        if lake is None and self._copy and state.recorded_lake is not None:
            raise LakeMismatchError(
                f"the lake of {state.name} is in a catalog outside the warehouse, and belongs to the original; drop "
                "the table in the copy, or copy its lake table and adopt that"
            )
        return lake

    def _require_whole(self, state: TableState, lake: LakeRelocation | None) -> None:
        """Raise if a file is missing, or lake and log do not match: a copy made during writes may be torn."""
        if state.buried:
            return
        try:
            needed = list_referenced_keys(state) | ArchiveObjectKeys(self._storage)(state)
            needed |= lake.needed() if lake is not None else set()
        except SnapshotExpiredError as error:
            raise CorruptDataError(f"table {state.name} of {self._url}: {error}; copy the warehouse again") from error
        present = {info.key for info in self._storage.list(f"{TABLES_PREFIX}{state.table_uuid}/")}
        present |= {info.key for info in self._storage.list(f"{state.lake_location}/")} if lake is not None else set()
        for key in sorted(needed - present):
            try:
                self._storage.size_bytes(key)
            except ObjectNotFoundError as error:
                raise CorruptDataError(
                    f"table {state.name} of {self._url} lacks {key}: the warehouse was written while it was copied, or "
                    "the copy was cut short; copy it again while nothing writes"
                ) from error
        if lake is None:
            return
        lake_table = open_lake_table(self._storage, self._settings, state, self._world)
        newest = lake_table.newest() if lake_table.exists() else None
        held = newest.offsets if newest is not None else {}
        is_behind = state.lake is not None and any(held.get(b, 0) < o for b, o in state.lake.offsets.items())
        if (newest is not None and lake_is_ahead(newest, state)) or is_behind:
            raise CorruptDataError(
                f"table {state.name} of {self._url}: its lake holds the offsets {dict(held)}, its log ends at "
                f"{dict(state.ends)} and was tiered up to {dict(state.lake.offsets) if state.lake else {}}: the "
                "warehouse was written while it was copied; copy it again while nothing writes, or build the table's "
                f"lake anew from what the log holds: `streamhouse -w {self._url} retier {state.name}`"
            )

    # -- acting ---------------------------------------------------------------------------------------------------

    def _read_identities(self) -> _Identities:
        data = self._storage.read(RELOCATION_KEY)
        header = decode_frame("relocation", data, f"{self._url}/{RELOCATION_KEY}").header
        return _Identities(header["id"], header["tables"])

    def _store_identities(self, states: list[TableState]) -> _Identities:
        new = self._world.ids.new_uuid
        own = _Identities(new(), {state.table_uuid: new() for state in states})
        data = encode_frame("relocation", {"id": own.warehouse_id, "tables": own.tables})
        put = Slot(self._storage, RELOCATION_KEY, self._read_identities, own.__eq__).take(data)
        if put.outcome is PutOutcome.LOST and put.stored is not None:
            return put.stored
        if put.outcome is PutOutcome.UNREADABLE:
            raise put.error
        if put.outcome is not PutOutcome.WON:
            raise StorageError(f"{self._url}/{RELOCATION_KEY} could not be stored; run relocate again")
        return own

    def _relocate(self, state: TableState, lake: LakeRelocation | None, new_uuid: str | None) -> None:
        if new_uuid is not None:
            copy_log(self._storage, self._world, state.table_uuid, new_uuid)
        elif (places := log_locations_of(self._storage)) is not None and is_placed(state.table_uuid):
            places.take_over(state.table_uuid)
        if lake is not None:
            lake.relocate(new_uuid)
        path = parse_table_name(state.name).path
        if new_uuid is not None and (pointer := names.resolve(self._storage, path)).uuid == state.table_uuid:
            names.point(self._storage, path, pointer, new_uuid, self._world)

    def _finish(self, file: WarehouseMetadata, identities: _Identities | None) -> None:
        done = WarehouseMetadata(file.id if identities is None else identities.warehouse_id, self._url)
        if done != file:
            self._storage.put(WAREHOUSE_KEY, done.to_bytes())
        if identities is not None:
            self._storage.delete(RELOCATION_KEY)

    def _report(
        self,
        moved_from: str | None,
        states: list[TableState],
        lakes: list[LakeRelocation | None],
        roots: list[str | None],
        new_uuids: dict[str, str],
    ) -> RelocateReport:
        tables = tuple(
            RelocatedTable(
                state.name,
                new_uuids.get(state.table_uuid, state.table_uuid),
                state.table_uuid,
                f"{self._url}/{state.lake_location}" if lake is not None else None,
                root,
                lake.num_written if lake is not None else 0,
            )
            for state, lake, root in zip(states, lakes, roots, strict=True)
        )
        return RelocateReport(self._url, moved_from, self._copy, self._dry_run, tables)
