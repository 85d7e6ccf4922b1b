"""`Warehouse`: the databases and tables under one directory or URL."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from streamhouse_spark.core.argument_validation import validates_arguments
from streamhouse_spark.core.clock import World, system_author
from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.core.warehouse_layout import LAKE_PREFIX, parse_database, parse_table_name
from streamhouse_spark.errors import (
    CorruptDataError,
    StreamhouseError,
    TableExistsError,
    TableNotFoundError,
    count_of,
)
from streamhouse_spark.log.actions import Drop
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.log_locations import make_log_routing_storage, require_log_location
from streamhouse_spark.log.catalog.name_changes import (
    drop_view,
    follow_replacements,
    is_named,
    name_is_view_error,
    rename,
    undrop,
)
from streamhouse_spark.log.catalog.names import WarehouseIdentity
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.gc.dropped_tables import clean_dropped
from streamhouse_spark.log.gc.garbage_collection import GRACE_MS, CleanReport
from streamhouse_spark.log.state import TableState
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.factory import open_storage
from streamhouse_spark.table.preloading import preload_on_open
from streamhouse_spark.table.table import Table
from streamhouse_spark.warehouse.creation import (
    check_comment,
    check_warehouse,
    create_named_table,
    format_setting,
    make_create_action,
)
from streamhouse_spark.warehouse.listing import (
    DroppedTable,
    TableSummary,
    find_dropped_table,
    list_dropped_tables,
    list_tables,
    list_tables_of,
    prefetch_names,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from streamhouse_spark.schema.table_schema import SparkSchema
    from streamhouse_spark.table.scan import RowsLike, Scannable
    from streamhouse_spark.warehouse.adoption import AdoptReport
    from streamhouse_spark.warehouse.costs import WarehouseCosts

logger = logging.getLogger(__name__)


def open_pointed(warehouse: Warehouse, path: TablePath, uuid: str, log: CommitLog | None = None) -> Table | None:
    """Open the table of a pointer with its latest state; None if the name no longer refers to it.

    Reads only the log, which may be passed as ``log``.
    """
    storage, world = warehouse.storage, warehouse.world
    try:
        log = follow_replacements(storage, world, log or CommitLog(storage, uuid, world))
    except TableNotFoundError:  # dropped, and its files are deleted
        return None
    return make_table(warehouse, path, log) if is_named(log.state, path) else None


def make_table(warehouse: Warehouse, path: TablePath, log: CommitLog) -> Table:
    """Return the table of a log. Its state is read on first use."""
    return Table(warehouse.storage, warehouse.settings, path, log, warehouse.world)


@validates_arguments(names=("name", "old", "new", "to", "lake", "database"))
class Warehouse:
    """A warehouse at a path or URL, such as ``/data/wh`` or ``s3://bucket/wh``.

    The first `create_table` or `create_database` creates the warehouse, in an absent or empty directory. All other
    methods raise `WarehouseNotFoundError` if it does not exist. The object is thread-safe and can be pickled, with its
    settings.

    * ``location``: path or URL.
    * ``settings``: storage settings of pyiceberg, such as ``s3.endpoint`` and ``s3.region``, and
      ``lake.iceberg.catalog.*``. They are never stored.

    Raises `InvalidOptionError` for an invalid location or setting. No request is sent before the first call.

    >>> sh.Warehouse(warehouse.url).tables()
    ['shop.orders', 'shop.people']
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        settings: Mapping[str, str] | None = None,
        *,
        world: World | None = None,
        storage: Storage | None = None,
    ) -> None:
        check_warehouse(location, settings)
        self.world: Final = world or World(author=system_author("python"))
        self.settings: Final[Mapping[str, str]] = {
            str(key): format_setting(value) for key, value in (settings or {}).items()
        }
        """The settings. Never print them, because they may contain credentials."""
        opened = storage if storage is not None else open_storage(str(location), self.settings, self.world)
        self.storage: Final = make_log_routing_storage(opened, self.settings, self.world)
        self._is_verified = False

    @property
    def url(self) -> str:
        """The location as a path or URL.

        >>> warehouse.url.startswith("/")
        True
        """
        return self.storage.url

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in ("settings", "storage", "world")]

    def __repr__(self) -> str:
        return f"Warehouse({self.url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the location and the settings, which may contain credentials."""
        return _reopen, (self.storage, dict(self.settings))

    # -- databases ------------------------------------------------------------------------------------------------

    def create_database(self, name: str, *, if_not_exists: bool = True, comment: str | None = None) -> None:
        """Create a database. Raises `TableExistsError` if it exists and ``if_not_exists`` is false.

        >>> warehouse.create_database("sales", comment="all sales")
        """
        database = parse_database(name)
        check_comment(f"database {database}", comment)
        self._ensure()
        created = names.create_database(self.storage, database, self.world, comment=comment)
        if not created and not if_not_exists:
            raise TableExistsError(f"database {database} exists in {self.url}", condition="DATABASE_EXISTS")

    def databases(self) -> list[str]:
        """Return the names of all databases.

        >>> warehouse.databases()
        ['shop']
        """
        self._require()
        return names.list_databases(self.storage)

    def database_exists(self, name: str) -> bool:
        """Return whether the database exists.

        >>> warehouse.database_exists("shop")
        True
        """
        self._require()
        return names.database_exists(self.storage, parse_database(name))

    def database_comment(self, name: str) -> str | None:
        """Return the comment of a database; None if it has none.

        Raises `TableNotFoundError` (``DATABASE_NOT_FOUND``) for an unknown database.

        >>> warehouse.create_database("sales", comment="all sales")
        >>> warehouse.database_comment("sales")
        'all sales'
        """
        return self._find_database(name).comment

    def comment_database(self, name: str, comment: str | None) -> None:
        """Set the comment of a database; None removes it.

        Raises `TableNotFoundError` (``DATABASE_NOT_FOUND``) for an unknown database.

        >>> warehouse.comment_database("shop", "the shop")
        """
        check_comment(f"database {parse_database(name)}", comment)
        while (pointer := self._find_database(name)).comment != comment:
            if names.put_database_pointer(self.storage, pointer, self.world, exists=True, comment=comment):
                return

    def drop_database(self, name: str, *, cascade: bool = False, if_exists: bool = False) -> bool:
        """Drop an empty database, or with ``cascade`` also its tables and views. Returns whether it existed.

        Raises `TableExistsError` (``DATABASE_NOT_EMPTY``) if the database has tables, or one is created concurrently,
        and `TableNotFoundError` (``DATABASE_NOT_FOUND``) for an unknown database if ``if_exists`` is false.

        >>> warehouse.drop_database("shop", cascade=True)
        True
        """
        database = parse_database(name)
        self._require()
        while (pointer := names.resolve_database(self.storage, database)).exists:
            self._empty_database(database, cascade=cascade)
            if not names.put_database_pointer(self.storage, pointer, self.world, exists=False):
                continue
            try:
                self._empty_database(database, cascade=False)
            except TableExistsError:
                names.create_database(self.storage, database, self.world, comment=pointer.comment)
                raise
            return True
        if if_exists:
            return False
        raise self._no_database(database)

    def _empty_database(self, database: str, *, cascade: bool) -> None:
        tables = [str(table.path) for table in list_tables_of(self.storage, self.world, database)]
        views = list(names.list_views(self.storage, database))
        contents = [*tables, *map(str, views)]
        if contents and not cascade:
            raise TableExistsError(
                f"database {database} of {self.url} has {count_of(len(contents), 'object')} "
                f"({', '.join(contents[:5])}); drop or rename them first, or drop them too with CASCADE (cascade=True)",
                condition="DATABASE_NOT_EMPTY",
            )
        for view in views:
            drop_view(self.storage, self.world, view)
        for table in tables:
            self.drop_table(table, if_exists=True)

    # -- tables ---------------------------------------------------------------------------------------------------

    def tables(self, database: str | None = None) -> list[str]:
        """Return the names ``<database>.<table>`` of all tables, or of the tables in one database, in order.

        Raises `TableNotFoundError` (``DATABASE_NOT_FOUND``) for an unknown database.

        >>> warehouse.tables()
        ['shop.orders', 'shop.people']
        """
        return [str(table.path) for table in self._list_tables(database)]

    def _list_tables(self, database: str | None) -> Iterator[TableSummary]:
        if database is not None:
            name = parse_database(database)
            return list_tables_of(self.storage, self.world, name, lambda: self._find_database(name))
        first = prefetch_names(self.storage, exists=self._is_verified)
        self._is_verified = True
        return list_tables(self.storage, self.world, first)

    def exists(self, name: str) -> bool:
        """Return whether the table exists. A suffix of the name, such as ``$lake``, is ignored.

        >>> warehouse.exists("shop.orders")
        True
        """
        self._require()
        pointer = self._resolve_pointer(path := parse_table_name(name).path)
        return bool(pointer.uuid and open_pointed(self, path, pointer.uuid))

    def create_table(
        self,
        name: str,
        schema: pa.Schema | str | SparkSchema | RowsLike,
        *,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        buckets: int | None = None,
        properties: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        if_not_exists: bool = False,
    ) -> Table:
        """Create a table, and its database and warehouse if they do not exist.

        * ``schema``: a ``pyarrow.Schema``, a Spark DDL string, a PySpark ``StructType``, or a frame or other rows whose
          columns the table gets, without the rows.
        * ``primary_key``: columns, which become NOT NULL. The table then supports upserts and deletes by key, instead
          of appends. The first of them that is not a partition column is the default of ``bucket.key``.
        * ``partition_by``: columns and transforms: ``years(c)``, ``months(c)``, ``days(c)``, ``hours(c)``,
          ``truncate(4, c)``.
        * ``buckets``: sets the property ``bucket.num``.
        * ``properties``: table properties.
        * ``defaults``: column → constant for rows in which the column is missing. Explicit nulls remain null.
        * ``if_not_exists``: return an existing table unchanged.

        Raises `TableExistsError`, `InvalidNameError`, `InvalidOptionError` or `SchemaMismatchError` before anything is
        written.

        >>> warehouse.create_table("shop.events", "id BIGINT, at TIMESTAMP", partition_by=["days(at)"])
        Table(shop.events: 2 columns, 1 bucket, 0 rows)
        >>> warehouse.create_table("shop.points", pl.DataFrame({"x": [0.5]})).append(pl.DataFrame({"x": [0.5]}))
        BucketOffsets({0: [0, 1)})
        """
        path = parse_table_name(name).require_table("create")
        create = make_create_action(path, schema, primary_key, partition_by, buckets, properties, defaults=defaults)
        require_log_location(self.storage, create.properties)
        table = create_named_table(
            self.storage, self.world, path, create, lambda log: self._open_named(path, log.table_uuid, log)
        )
        self._is_verified = True
        if table is None and not if_not_exists:
            raise TableExistsError(
                f"table {path} exists in {self.url}; drop it first, or set if_not_exists=True to use it unchanged",
            )
        if table is None:
            return self.table(str(path))
        preload_on_open(table)
        return table

    def adopt_table(
        self,
        name: str,
        lake: str | None = None,
        *,
        primary_key: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        dry_run: bool = False,
    ) -> AdoptReport:
        """Create a table from an existing Iceberg or Paimon table, whose rows become its history. No row is rewritten.

        Columns, partitions and buckets are those of the lake table, in which tiering continues. Adopted rows have no
        offsets: table and lake reads return them; batch reads by offset, changelogs and streams start after them.
        Dropping the table keeps the lake table. If there is no warehouse, it is created around a ``lake`` folder with
        such tables.

        * ``lake``: the name ``<database>.<table>`` of the lake table in its catalog; by default ``name``.
        * ``primary_key``: by default the identifier fields of an Iceberg table, and always the primary key of a Paimon
          table. The rows are then copied to KV snapshots, sorted in memory per bucket. Keys of an Iceberg table must be
          unique; of a Paimon table the latest row per key is used.
        * ``properties``: table properties. ``table.datalake.format`` is by default the format of the lake table.
        * ``dry_run``: only report.

        Raises, before anything is changed, `LakeMismatchError` with all unsupported properties of the lake table,
        `TableExistsError` and `InvalidOptionError`; `CommitConflictError` if the lake table changed concurrently. After
        a crash, adopt the table again.

        >>> warehouse.adopt_table("shop.visits", dry_run=True).rows  # written by another engine
        0
        """
        from streamhouse_spark.warehouse.adoption import adopt_table

        if not dry_run:
            self._ensure(around=LAKE_PREFIX.rstrip("/"))
        return adopt_table(
            self.storage, self.settings, self.world, name, lake, primary_key, properties, dry_run=dry_run
        )

    def table(self, name: str) -> Table:
        """Open a table, or a branch as ``<table>$branch_<name>``.

        Raises `TableNotFoundError` with the nearest name, and `InvalidNameError` for any other suffix.

        >>> warehouse.table("shop.orders")
        Table(shop.orders: 3 columns, 1 bucket, 2 rows)
        """
        if (table := self.find_table(name)) is None:
            raise self._not_found(parse_table_name(name).path.base)
        preload_on_open(table)
        return table

    def find_table(self, name: str) -> Table | None:
        """Open a table or a branch; None if it does not exist. See `table`.

        >>> warehouse.find_table("shop.absent") is None
        True
        """
        path = parse_table_name(name).require_rows("open as a table")
        if (pointer := self._resolve_pointer(path.base)).view is not None:
            raise name_is_view_error(path.base, self.url)
        table = open_pointed(self, path.base, pointer.uuid) if pointer.uuid else None
        return table if table is None or path.branch is None else table.branch(path.branch)

    def view(self, name: str) -> Scannable:
        """Open a table, or a read-only view of it such as ``<table>$lake``, ``<table>$changelog`` or a system table.

        Raises the errors of `table`, and `InvalidNameError` with the supported suffixes for an unsupported suffix.

        >>> warehouse.view("shop.orders$changelog").to_arrow().num_rows
        2
        """
        parsed = parse_table_name(name)
        table = self.table(str(parsed.path))
        if parsed.suffix is None:
            return table
        from streamhouse_spark.table.system_views import open_view

        return open_view(table, parsed.suffix)

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Query tables and views with DuckDB's SQL, without Spark: ``SELECT … FROM shop.orders``. Read-only.

        The relation reads the latest rows, when it is executed: `fetchall`, `df`, `pl`, `to_arrow_table`. Names are
        those of `view`; quote a name with ``$``. Raises `MissingExtraError` without DuckDB, `InvalidOptionError` for
        anything but a SELECT, and DuckDB's own errors.

        >>> warehouse.sql("SELECT sum(amount) FROM shop.orders").fetchall()
        [(13.5,)]
        """
        from streamhouse_spark.warehouse.duckdb_sql import run_sql

        return run_sql(self.view, query)

    def drop_table(self, name: str, *, if_exists: bool = False) -> bool:
        """Drop a table, and its lake table if it is in the warehouse. Returns whether the table existed.

        `clean_dropped` deletes the files after the grace period. Until then `undrop_table` restores the table. If the
        log of the table is damaged, its name is freed and its files are kept.

        Raises `TableNotFoundError` for an unknown table if ``if_exists`` is false.

        >>> warehouse.drop_table("shop.orders")
        True
        """
        path = parse_table_name(name).require_table("drop")
        self._require()
        pointer = names.NamePointer(0, None)
        try:
            pointer = names.resolve(self.storage, path)
            table = open_pointed(self, path, pointer.uuid) if pointer.uuid else None
        except CorruptDataError as error:
            pointer = pointer if pointer.number else names.damaged_pointer_placeholder(self.storage, path)
            logger.warning("table %s is damaged; its name is freed and its files stay: %s", path, error)
            return names.put_name_pointer(self.storage, path, pointer, None, self.world)
        if table is None or pointer.uuid is None:
            if if_exists:
                return False
            raise self._not_found(path)

        table.log.commit(lambda state, _: (Drop(),) if is_named(state, path) else ())
        if not table.log.state.dropped:  # renamed since it was opened
            if if_exists:
                return False
            raise self._not_found(path)
        with log_post_commit_errors(logger, "freeing the name", path):  # a pointer to a dropped table is ignored
            names.put_name_pointer(self.storage, path, pointer, None, self.world)
        return True

    def dropped_tables(self) -> list[DroppedTable]:
        """Return the dropped tables that `undrop_table` can restore, ordered by name, then latest first.

        >>> warehouse.dropped_tables()
        []
        """
        self._require()
        return list_dropped_tables(self.storage, self.world)

    def undrop_table(self, name: str, *, uuid: str | None = None, to: str | None = None) -> Table:
        """Restore a dropped table with its rows, offsets and lake table, and return it.

        This is possible until `clean_dropped` deletes its files, after the grace period. The database is recreated if
        it was dropped. Streams and writers continue when they reopen the table.

        * ``uuid``: which of several tables to restore that had the name; by default the latest. See `dropped_tables`.
        * ``to``: a new name of the table.

        Raises `TableNotFoundError` if there is no such dropped table, `TableExistsError` if the name is in use.

        >>> warehouse.drop_table("shop.orders")
        True
        >>> warehouse.undrop_table("shop.orders")
        Table(shop.orders: 3 columns, 1 bucket, 2 rows)
        """
        path = parse_table_name(name).require_table("undrop")
        target = path if to is None else parse_table_name(to).require_table("undrop to")
        self._require()
        if to is None and uuid is None and self.exists(name):
            raise TableExistsError(
                f"table {path} exists in {self.url}; restore the dropped table under another name with to="
            )
        table = find_dropped_table(self.dropped_tables(), path, uuid, self.url)
        names.create_database(self.storage, target.database, self.world)
        if not undrop(self.storage, self.world, CommitLog(self.storage, table.uuid, self.world), target):
            raise TableExistsError(
                f"table {path} cannot be restored as {target}: it exists in {self.url}; choose another name with to="
            )
        self._keep_database(target)
        return self._open_named(target, table.uuid)

    def rename_table(self, old: str, new: str) -> None:
        """Rename a table in one commit, also to another database. Rows, offsets and the lake table are unchanged.

        Open tables continue. Streams that resolve the old name end with `TableNotFoundError`, which has the new name.

        Raises `TableNotFoundError` for an unknown table or database, `TableExistsError` if the new name is in use.

        >>> warehouse.rename_table("shop.orders", "shop.purchases")
        """
        path = parse_table_name(old).require_table("rename")
        target = parse_table_name(new).require_table("rename to")
        table = self.table(str(path))
        self._find_database(target.database)
        if not rename(self.storage, self.world, table.log, path, target):
            raise TableExistsError(
                f"table {path} cannot be renamed to {target}: it exists in {self.url}; drop or rename it first"
            )
        self._keep_database(target)

    def clone_table(self, source: str, target: str, *, version: int | str | None = None) -> Table:
        """Create an independent table from a version of ``source``, without copying lake files.

        * ``version``: a commit number or a tag; by default the latest commit.

        Raises `TableExistsError` for a name in use, `InvalidOptionError` for a table that does not support clones, and
        `SnapshotExpiredError` for a version whose files were replaced since.

        >>> warehouse.clone_table("shop.orders", "shop.copy")
        Table(shop.copy: 3 columns, 1 bucket, 2 rows)
        """
        from streamhouse_spark.warehouse.cloning import clone_table

        to = parse_table_name(target).require_table("clone to")
        clone_table(self.storage, self.world, self.table(source), to, version)
        return self.table(target)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def costs(self, prices: Mapping[str, Any] | None = None, *, database: str | None = None) -> WarehouseCosts:
        """Return the requests of this process, and the estimated monthly cost of all tables or of one database.

        ``prices`` are as for `Table.costs`. Tables that cannot be read are listed in ``failed``.

        >>> warehouse.costs().estimate.total_usd > 0
        True
        """
        from streamhouse_spark.warehouse.costs import warehouse_costs

        def opened(summary: TableSummary) -> Table:
            if summary.log is None:  # opening the damaged table raises the error
                return self.table(str(summary.path))
            return make_table(self, summary.path, summary.log)

        return warehouse_costs(self.storage, self._list_tables(database), opened, prices)

    def clean_dropped(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> CleanReport:
        """Delete the files of tables that were dropped, or never got a name, longer ago than the grace period.

        Their lake tables are deleted too, unless they are in an external catalog or were adopted.

        * ``grace_ms``: the grace period.
        * ``dry_run``: only report.

        Raises `WarehouseMovedError`, before anything is deleted, if the warehouse was moved.

        >>> warehouse.clean_dropped().deleted
        []
        """
        self._require()
        if not dry_run:
            WarehouseIdentity(self.storage).require("cleaning dropped tables")
        return clean_dropped(self.storage, self.world, self._drop_lake, grace_ms=grace_ms, dry_run=dry_run)

    # -- internals ------------------------------------------------------------------------------------------------

    def _ensure(self, *, around: str | None = None) -> None:
        names.create_warehouse(self.storage, self.world, around=around)
        self._is_verified = True

    def _require(self) -> None:
        if not self._is_verified:
            names.require_warehouse(self.storage)
            self._is_verified = True

    def _resolve_pointer(self, path: TablePath) -> names.NamePointer:
        pointer = (
            names.resolve(self.storage, path) if self._is_verified else names.resolve_in_one_request(self.storage, path)
        )
        self._is_verified = True
        return pointer

    def _keep_database(self, path: TablePath) -> None:
        """Recreate the database of a committed name if it was dropped concurrently."""
        with log_post_commit_errors(logger, "keeping the database", path):
            names.create_database(self.storage, path.database, self.world)

    def _open_named(self, path: TablePath, uuid: str, log: CommitLog | None = None) -> Table:
        """Return the table of a committed name. If its state cannot be read, it is read on first use.

        Raises `TableNotFoundError` if the creation stalled for so long that cleaning dropped the table.
        """
        table: Table | None = make_table(self, path, CommitLog(self.storage, uuid, self.world))
        with log_post_commit_errors(logger, "opening", path):
            table = open_pointed(self, path, uuid, log)
        if table is None:
            raise self._not_found(path)
        return table

    def _drop_lake(self, state: TableState) -> None:
        if state.has_lake:
            from streamhouse_spark.table.lake import drop_lake_table

            drop_lake_table(self.storage, self.settings, state, self.world)

    def _find_database(self, name: str) -> names.DatabasePointer:
        database = parse_database(name)
        pointer = (names.resolve_database if self._is_verified else names.resolve_database_in_one_request)(
            self.storage, database
        )
        self._is_verified = True
        if not pointer.exists:
            raise self._no_database(database)
        return pointer

    def _no_database(self, database: str) -> TableNotFoundError:
        near = find_nearest(database, databases := self.databases())
        hint = f"did you mean {near}?" if near else f"available: {', '.join(databases[:10]) or 'none'}"
        return TableNotFoundError(
            f"database {database} does not exist in {self.url}; {hint}", condition="DATABASE_NOT_FOUND"
        )

    def _find_new_name(self, pointer: names.NamePointer) -> str | None:
        """Return the new name of the table that the name referred to; None if it was not renamed."""
        if pointer.uuid is None:
            return pointer.moved_to
        with suppress(TableNotFoundError, CorruptDataError):
            state = CommitLog(self.storage, pointer.uuid, self.world).refresh()
            return None if state.dropped else state.name
        return None

    def _not_found(self, path: TablePath) -> StreamhouseError:
        pointer = names.resolve(self.storage, path)
        if pointer.view is not None:
            return name_is_view_error(path, self.url)
        if (moved_to := self._find_new_name(pointer)) is not None:
            return TableNotFoundError(f"table {path} of {self.url} was renamed to {moved_to}; use that name")
        near = find_nearest(str(path), tables := self.tables())
        hint = f"did you mean {near}?" if near else f"available: {', '.join(tables[:10]) or 'none'}"
        return TableNotFoundError(f"table {path} does not exist in {self.url}; {hint}")


def _reopen(storage: Storage, settings: Mapping[str, str]) -> Warehouse:
    return Warehouse(storage.url, settings, storage=storage)
