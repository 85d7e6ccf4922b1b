"""`TableHandle`: a table's storage, log and identity, the base of all reads, writes and upkeep.

`Table` is one, with the verbs of the public interface. Nothing below it knows more of a table than is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from streamhouse_spark.config.properties import TableProperties
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.paths import parse_table_name, table_prefix
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.log.commits.commit_log import CommitLog
from streamhouse_spark.log.commits.idempotency import require_not_dropped
from streamhouse_spark.log.commits.state import TableState
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.storage.base import Storage, url_of

if TYPE_CHECKING:
    from streamhouse_spark.lake.table import LakeTable


class TableHandle:
    """One table, by its uuid: under the same name another may be created, which a handle never touches.

    Safe for use by several threads; any of them may `refresh`, so values that belong together are taken from one
    `state`.
    """

    def __init__(
        self, storage: Storage, settings: Mapping[str, str], path: TablePath, log: CommitLog, world: World
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._path = path
        self._log = log
        self._world = world

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the table as its location, name, uuid and settings (which may hold credentials), without anything it
        read.

        On the other side it has a clock and identities of its own, and is read when it is first used. A table that
        was dropped meanwhile is an error there, also where another one has its name.
        """
        return _reopen, (type(self), self._storage, dict(self._settings), str(self._path), self.uuid)

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def path(self) -> TablePath:
        return self._path

    @property
    def uuid(self) -> str:
        return self._log.table_uuid

    @property
    def storage(self) -> Storage:
        return self._storage

    @property
    def settings(self) -> Mapping[str, str]:
        """May hold credentials: never print it."""
        return self._settings

    @property
    def world(self) -> World:
        return self._world

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def state(self) -> TableState:
        """The state as last read; `refresh` reads on."""
        return self._log.state

    def refresh(self) -> TableState:
        """Read the newest state. Raises `TableNotFoundError` where the table was dropped."""
        return self._read(self._log.refresh())

    def look(self, at_most: int) -> TableState:
        """Read a newer state, if there is one: see `CommitLog.look`. Raises `TableNotFoundError`."""
        return self._read(self._log.look(at_most))

    def _read(self, state: TableState) -> TableState:
        self.require_there(state)
        if state.name != str(self._path) and self._path.branch is None:
            self._path = parse_table_name(state.name).path  # it was renamed
        return state

    def require_there(self, state: TableState) -> TableState:
        """Return the state. Raises `TableNotFoundError` for that of a dropped table."""
        require_not_dropped(state)
        return state

    @property
    def properties(self) -> TableProperties:
        return self.state.parsed

    @property
    def has_lake(self) -> bool:
        """Whether rows are tiered, or were: after tiering was disabled, the lake is still read."""
        return self.state.has_lake

    def segment_options(self, state: TableState | None = None) -> SegmentOptions:
        """Return the form of segments for a state, the newest known by default."""
        state = state or self.state
        of = state.parsed
        written_before = state.former_partitionings
        return SegmentOptions(
            state.schema_id, state.partition_by, of.statistics_columns, of.log_compression, written_before
        )

    def open_lake(self, older_state: TableState | None = None) -> LakeTable:
        """Open the lake side of this table, or the one of an older state, which lies elsewhere where the lake was built
        anew since. Raises `InvalidOptionError` if it has none, `MissingExtraError`, `SnapshotExpiredError` where such a
        former lake is gone.
        """
        state = self.state
        is_former = older_state is not None and older_state.lake_location != state.lake_location
        if older_state is not None and is_former:
            state = older_state
        if not state.has_lake:
            raise InvalidOptionError(
                f"table {self.name} has no lake: table.datalake.enabled is false; set it to true, then tier the table",
            )
        from streamhouse_spark.lake.formats import open_lake_table

        lake = open_lake_table(self._storage, self._settings, state, self._world)
        if is_former and not lake.exists():
            raise SnapshotExpiredError(
                f"{state.name} as of commit {state.version}: its lake was built anew since (retier), and the former "
                f"lake table at {lake.location} is gone; bring its files back, or choose a later commit of "
                f"{state.name}$commits"
            )
        return lake


def log_url(table: TableHandle) -> str:
    """Return the URL of the table's log: below the warehouse, or where ``table.log.location`` says."""
    return url_of(table.storage, table_prefix(table.uuid)).rstrip("/")


def _reopen(
    kind: type[TableHandle], storage: Storage, settings: Mapping[str, str], name: str, uuid: str
) -> TableHandle:
    world = World()
    return kind(storage, settings, parse_table_name(name).path, CommitLog(storage, uuid, world), world)
