"""`TableHandle`: the storage, log and identity of one table, an argument of all reads, writes and maintenance.

`Table` is a handle with the methods of the public interface. Layers below `table` use only the handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from streamhouse_spark.config.table_properties import TableProperties
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import parse_table_name, table_prefix
from streamhouse_spark.errors import InvalidOptionError, SnapshotExpiredError
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.commit_validation import require_not_dropped
from streamhouse_spark.log.segments.writer import SegmentOptions
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage, url_of

if TYPE_CHECKING:
    from streamhouse_spark.lake.base import LakeTable


class TableHandle:
    """One table, identified by its uuid: a handle never accesses a later table with the same name.

    Safe for threads. Any thread may `refresh`, so take related values from one `state`.
    """

    def __init__(
        self, storage: Storage, settings: Mapping[str, str], path: TablePath, log: CommitLog, world: World
    ) -> None:
        self.storage: Final = storage
        self.settings: Final = settings
        """The settings. They may hold credentials: never print them."""
        self.path = path
        self.log: Final = log
        self.world: Final = world

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the table's location, name, uuid and settings (which may hold credentials), without its state.

        The unpickled table has its own clock and ids, and is read on first use. That fails if the table was dropped,
        even if another table has its name.
        """
        return _reopen, (type(self), self.storage, dict(self.settings), str(self.path), self.uuid)

    @property
    def name(self) -> str:
        """The full name, ``<database>.<table>``.

        >>> orders.name
        'shop.orders'
        """
        return str(self.path)

    @property
    def uuid(self) -> str:
        return self.log.table_uuid

    @property
    def state(self) -> TableState:
        """The cached state; `refresh` reads the latest one."""
        return self.log.state

    def refresh(self) -> TableState:
        """Read the latest state. Raises `TableNotFoundError` if the table was dropped."""
        return self._read(self.log.refresh())

    def refresh_at_most(self, num_records: int) -> TableState:
        """Read at most ``num_records`` new records, see `CommitLog.refresh_at_most`. Raises `TableNotFoundError`."""
        return self._read(self.log.refresh_at_most(num_records))

    def _read(self, state: TableState) -> TableState:
        self.require_not_dropped(state)
        if state.name != str(self.path) and self.path.branch is None:
            self.path = parse_table_name(state.name).path  # it was renamed
        return state

    def require_not_dropped(self, state: TableState) -> TableState:
        """Return the state. Raises `TableNotFoundError` for the state of a dropped table."""
        require_not_dropped(state)
        return state

    @property
    def properties(self) -> TableProperties:
        return self.state.parsed

    @property
    def has_lake(self) -> bool:
        """Whether the table has a lake. It is read even if tiering was disabled."""
        return self.state.has_lake

    def segment_options(self, state: TableState | None = None) -> SegmentOptions:
        """Return the segment options of a state, by default of the cached one."""
        state = state or self.state
        of = state.parsed
        written_before = state.former_partitionings
        return SegmentOptions(
            state.schema_id, state.partition_by, of.statistics_columns, of.log_compression, written_before
        )

    def open_lake(self, older_state: TableState | None = None) -> LakeTable:
        """Open the lake of this table, or of ``older_state``, whose location differs if the lake was rebuilt.

        Raises `InvalidOptionError` if there is no lake, `MissingExtraError`, and `SnapshotExpiredError` if a former
        lake was deleted.
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

        lake = open_lake_table(self.storage, self.settings, state, self.world)
        if is_former and not lake.exists():
            raise SnapshotExpiredError(
                f"{state.name} as of commit {state.version}: its lake was rebuilt later (retier), and the former "
                f"lake table at {lake.location} was deleted; restore its files, or choose a later commit of "
                f"{state.name}$commits"
            )
        return lake


def log_url(table: TableHandle) -> str:
    """Return the URL of the table's log: in the warehouse, or at ``table.log.location``."""
    return url_of(table.storage, table_prefix(table.uuid)).rstrip("/")


def _reopen(
    kind: type[TableHandle], storage: Storage, settings: Mapping[str, str], name: str, uuid: str
) -> TableHandle:
    world = World()
    return kind(storage, settings, parse_table_name(name).path, CommitLog(storage, uuid, world), world)
