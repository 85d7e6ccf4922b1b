"""Relocation of a moved warehouse, or a new identity for a copied warehouse.

**Commit point:** ``streamhouse.json`` with the current URL, and for a copy with a new id. Before it, each lake and each
log of a copy has its own commit point, and the warehouse counts as moved. The same call continues an interrupted run,
and skips finished work.

Nothing outside the opened warehouse is written or deleted. Files that metadata names at the former root are read at the
same path below the current root.
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
    canonical_root,
    is_same_place,
    may_have_external_log,
    parse_table_name,
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
from streamhouse_spark.lake.tiering.record_snapshot import is_lake_ahead
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
"""A callback with the number of finished tables, the number of all tables, and the name of the next table."""


@dataclass(frozen=True, slots=True)
class RelocatedTable:
    table: str
    uuid: str
    """Current uuid of the table."""
    former_uuid: str
    lake: str | None
    """Current location of the lake table, if any."""
    moved_from: str | None
    """The former root in the metadata of the lake table; None if it was not moved."""
    files_written: int


@dataclass(frozen=True, slots=True)
class RelocateReport:
    """The changes of `relocate`, or with ``dry_run`` the changes that it would make."""

    warehouse: str
    moved_from: str | None
    """The former root; None if the warehouse was not moved."""
    copy: bool
    dry_run: bool
    tables: tuple[RelocatedTable, ...]


@dataclass(frozen=True, slots=True)
class _Identities:
    """The new ids of a copy. They are stored first, so that a continued run uses the same ids."""

    warehouse_id: str
    tables: dict[str, str]
    """Uuid of a table in the original → uuid of the table in the copy."""


@validate_arguments
def relocate(
    warehouse: str | os.PathLike[str] | Warehouse,
    settings: Mapping[str, str] | None = None,
    *,
    copy: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RelocateReport:
    """Rewrite the metadata of a moved warehouse for its location, or with ``copy`` give a copy new ids.

    Other engines can then open the lake tables at their new location. Iceberg metadata, manifests and position delete
    files, and Paimon manifests with absolute paths, are rewritten; data files are unchanged. A copy gets a new id, and
    its tables get new uuids, so that streams, transactions and caches of the original do not apply to it. The logs of a
    copy are rewritten under the new uuids; the former logs are deleted after the grace period.

    The original location is neither read nor written. No other process may write to the warehouse during the call.
    After a crash, the same call continues. Lake tables in an external catalog are unchanged, and prevent ``copy``.

    * ``warehouse``: its location, or an open `Warehouse`.
    * ``settings``: as for `Warehouse`.
    * ``copy``: whether the warehouse is a copy.
    * ``dry_run``: only report.
    * ``progress``: called before each table with the number of finished tables, the number of all tables, and the name
      of the table.

    Raises, with nothing written, `WarehouseNotFoundError`; `InvalidOptionError` for ``copy`` of a warehouse at its
    original location; `CorruptDataError` if a file is missing from the copy, or log and lake are of different times;
    `LakeMismatchError` for ``copy`` of a table whose lake is in an external catalog. After `CommitConflictError`,
    `CommitStateUnknownError` or `StorageError` run it again.
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
        self._url = canonical_root(warehouse.url)
        self._copy = copy
        self._dry_run = dry_run

    def run(self, progress: Progress) -> RelocateReport:
        file = read_warehouse_file(self._storage)
        if file is None:
            raise WarehouseNotFoundError(f"{self._url} has no streamhouse.json, so there is no warehouse to relocate")
        stored_identities: _Identities | None = None
        with suppress(ObjectNotFoundError):
            stored_identities = self._read_identities()
        if stored_identities is not None and stored_identities.warehouse_id == file.id:
            self._storage.delete(RELOCATION_KEY)  # an earlier run finished all other work
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
                f"an interrupted run was giving {self._url} new ids; continue it: "
                f"`streamhouse -w {self._url} relocate --copy`"
            )
        if self._copy and identities is None and file.url is not None and is_same_place(file.url, self._url):
            raise InvalidOptionError(
                f"{self._url} is not a copy: it was written at this location; copy the warehouse, and relocate the "
                "copy with --copy"
            )

    def _require_no_clones_or_branches(self, states: list[TableState]) -> None:
        if self._copy and (table_names := sorted(state.name for state in states if find_branches(state))):
            raise InvalidOptionError(
                f"{', '.join(table_names)} of {self._url} has branches, which refer to uuids that a copy would change; "
                "publish or drop the branches, and copy the warehouse then"
            )
        if self._copy and (table_names := sorted(state.name for state in states if list_clones(state))):
            raise InvalidOptionError(
                f"{', '.join(table_names)} of {self._url} has clones, which refer to uuids that a copy would change; "
                "drop the clones, clean the warehouse after the grace period, and copy it then"
            )

    # -- validation -----------------------------------------------------------------------------------------------

    def _iter_states(self, identities: _Identities | None) -> Iterator[TableState]:
        """Yield all tables that can be opened or restored; in a continued run, the tables with which it started."""
        new_uuids = set(identities.tables.values()) if identities is not None else set()
        # A log in another store may have no more files here under its former uuid.
        uuids = {*self._storage.list_names(TABLES_PREFIX), *(identities.tables if identities is not None else ())}
        for uuid in sorted(uuids - new_uuids):
            log = CommitLog(self._storage, uuid, self._world)
            try:
                state = log.refresh()
            except (TableNotFoundError, ObjectNotFoundError):
                state = None
            except CorruptDataError as error:  # the other tables must still be relocated
                logger.warning("table %s is damaged and not relocated: %s", uuid, error)
                continue
            if identities is not None and uuid in identities.tables and (state is None or state.buried):
                # An earlier run ended the former log.
                finished = CommitLog(self._storage, identities.tables[uuid], self._world).refresh()
                yield replace(finished, table_uuid=uuid, former_uuids=finished.former_uuids[:-1], buried=True)
            elif state is not None and not state.buried and BRANCH not in state.properties:  # a branch has no lake
                yield state

    def _open_lake(self, state: TableState) -> LakeRelocation | None:
        properties = state.parsed
        if not properties.datalake_enabled and state.recorded_lake is None:
            return None
        lake = open_lake_table(self._storage, self._settings, state, self._world).relocation()
        if lake is None and self._copy and state.recorded_lake is not None:
            raise LakeMismatchError(
                f"the lake of {state.name} is in an external catalog and belongs to the original table; drop the table "
                "in the copy, or copy its lake table and adopt that"
            )
        return lake

    def _require_whole(self, state: TableState, lake: LakeRelocation | None) -> None:
        """Raise `CorruptDataError` if a file is missing or lake and log do not match, as in a copy during writes."""
        if state.buried:
            return
        try:
            needed = list_referenced_keys(state) | ArchiveObjectKeys(self._storage)(state)
            needed |= lake.needed_files() if lake is not None else set()
        except SnapshotExpiredError as error:
            raise CorruptDataError(f"table {state.name} of {self._url}: {error}; copy the warehouse again") from error
        present = {info.key for info in self._storage.list(f"{TABLES_PREFIX}{state.table_uuid}/")}
        present |= {info.key for info in self._storage.list(f"{state.lake_location}/")} if lake is not None else set()
        for key in sorted(needed - present):
            try:
                self._storage.size_bytes(key)
            except ObjectNotFoundError as error:
                raise CorruptDataError(
                    f"{key} is missing from table {state.name} of {self._url}: the warehouse was written during the "
                    "copy, or the copy was interrupted; copy it again while nothing writes"
                ) from error
        if lake is None:
            return
        lake_table = open_lake_table(self._storage, self._settings, state, self._world)
        latest = lake_table.newest() if lake_table.exists() else None
        lake_offsets = latest.offsets if latest is not None else {}
        is_behind = state.lake is not None and any(lake_offsets.get(b, 0) < o for b, o in state.lake.offsets.items())
        if (latest is not None and is_lake_ahead(latest, state)) or is_behind:
            raise CorruptDataError(
                f"table {state.name} of {self._url}: the lake has offsets {dict(lake_offsets)}, expected "
                f"{dict(state.lake.offsets) if state.lake else {}} up to {dict(state.ends)} as in the log: the "
                "warehouse was written during the copy; copy it again while nothing writes, or rebuild the lake of "
                f"the table from the log: `streamhouse -w {self._url} retier {state.name}`"
            )

    # -- changes --------------------------------------------------------------------------------------------------

    def _read_identities(self) -> _Identities:
        data = self._storage.read(RELOCATION_KEY)
        header = decode_frame("relocation", data, f"{self._url}/{RELOCATION_KEY}").header
        return _Identities(header["id"], header["tables"])

    def _store_identities(self, states: list[TableState]) -> _Identities:
        new = self._world.ids.new_uuid
        identities = _Identities(new(), {state.table_uuid: new() for state in states})
        data = encode_frame("relocation", {"id": identities.warehouse_id, "tables": identities.tables})
        put = Slot(self._storage, RELOCATION_KEY, self._read_identities, identities.__eq__).take(data)
        if put.outcome is PutOutcome.LOST and put.stored is not None:
            return put.stored
        if put.outcome is PutOutcome.UNREADABLE:
            raise put.error
        if put.outcome is not PutOutcome.WON:
            raise StorageError(f"cannot store {self._url}/{RELOCATION_KEY}; run relocate again")
        return identities

    def _relocate(self, state: TableState, lake: LakeRelocation | None, new_uuid: str | None) -> None:
        if new_uuid is not None:
            copy_log(self._storage, self._world, state.table_uuid, new_uuid)
        elif (places := log_locations_of(self._storage)) is not None and may_have_external_log(state.table_uuid):
            places.take_over(state.table_uuid)
        if lake is not None:
            lake.relocate(new_uuid)
        path = parse_table_name(state.name).path
        if new_uuid is not None and (pointer := names.resolve(self._storage, path)).uuid == state.table_uuid:
            names.put_name_pointer(self._storage, path, pointer, new_uuid, self._world)

    def _finish(self, file: WarehouseMetadata, identities: _Identities | None) -> None:
        relocated = WarehouseMetadata(file.id if identities is None else identities.warehouse_id, self._url)
        if relocated != file:
            self._storage.put(WAREHOUSE_KEY, relocated.to_bytes())
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
