"""Creation of tables: validation of arguments, the create action, the first record and the name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streamhouse_spark.config.table_properties import (
    ADOPTED,
    BRANCH,
    PRIMARY_KEY,
    check_partition_columns,
    default_bucket_key,
    parse_properties,
)
from streamhouse_spark.core.clock import World
from streamhouse_spark.core.option_parsing import join_names, parse_names
from streamhouse_spark.core.post_commit import log_post_commit_errors
from streamhouse_spark.core.types import TablePath, is_text_list, is_unicode
from streamhouse_spark.core.warehouse_layout import lake_location
from streamhouse_spark.errors import CommitConflictError, InvalidOptionError, quote
from streamhouse_spark.expressions.check_constraints import has_constraints
from streamhouse_spark.expressions.generated_columns import has_generated_columns
from streamhouse_spark.log.actions import Create
from streamhouse_spark.log.bootstrap import put_first_record
from streamhouse_spark.log.catalog import names
from streamhouse_spark.log.catalog.log_locations import create_table_uuid
from streamhouse_spark.log.catalog.name_changes import free_name
from streamhouse_spark.log.commit_log import CommitLog
from streamhouse_spark.log.record import Record
from streamhouse_spark.log.state import fold
from streamhouse_spark.schema.column_defaults import check_defaults, with_defaults
from streamhouse_spark.schema.partitioning import PARTITION_FIELDS, join_fields, parse_fields, split_fields
from streamhouse_spark.schema.table_schema import TableSchema, check_column_name, require_unreserved_partition_name
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import map_with_store_concurrency

if TYPE_CHECKING:
    import pyarrow as pa

    from streamhouse_spark.schema.table_schema import SparkSchema


DEAD_LETTERS: Final = "at TIMESTAMP, target STRING, reason STRING, position STRING, event STRING"
"""Columns of a dead-letter table: time, target table, reason, position in the input, and the original row or event."""
logger = logging.getLogger(__name__)
NAME_RACES_MAX: Final = 20
T = TypeVar("T")


def format_setting(value: object) -> str:
    """Return a setting as a string, such as ``true`` for ``True``."""
    return value if isinstance(value, str) else str(value).lower()


def format_properties(path: object, properties: Mapping[str, object]) -> dict[str, str]:
    """Return the properties as strings. Raises `InvalidOptionError` for a value that Python cannot format."""
    try:
        return {str(key): str(value) for key, value in properties.items()}
    except ValueError as error:  # for example for a number with thousands of digits
        raise InvalidOptionError(f"table {path}: cannot format a property as a string ({error}); shorten it") from error


def check_warehouse(location: object, settings: object) -> None:
    """Raise `InvalidOptionError` for an invalid location or settings."""
    if not isinstance(location, str | os.PathLike):
        raise InvalidOptionError(f"the warehouse location is {quote(location)}, expected a path or a URL")
    text = os.fsdecode(location)
    if "\0" in text or not is_unicode(text) or len(text) > 4096 or max(map(len, text.split("/"))) > 255:
        raise InvalidOptionError(
            f"the warehouse location is {quote(text)}, expected a path or a URL of at most 4096 Unicode characters, "
            "255 between two slashes"
        )
    if not isinstance(settings, Mapping | None):
        raise InvalidOptionError(f"warehouse settings are a {type(settings).__name__}, expected a mapping of texts")


def check_comment(subject: str, comment: object) -> None:
    """Raise `InvalidOptionError` for a comment that is not a Unicode string."""
    if comment is not None and (not isinstance(comment, str) or not is_unicode(comment)):
        raise InvalidOptionError(f"the comment of {subject} is {quote(comment)}, expected a Unicode string")


def make_create_action(
    path: TablePath,
    schema: pa.Schema | str | SparkSchema | TableSchema,
    primary_key: Sequence[str],
    partition_by: Sequence[str],
    buckets: int | None,
    properties: Mapping[str, str] | None,
    defaults: Mapping[str, Any] | None = None,
    *,
    adopted: str | None = None,
    chooses_bucket_key: bool = True,
) -> Create:
    """Return the action that creates the table, without the location of its lake.

    ``adopted`` is the value of the property `ADOPTED`, which users cannot set. Raises `InvalidOptionError` or
    `SchemaMismatchError` for an invalid definition.
    """
    _check_arguments(path, primary_key, partition_by, properties)
    texts = format_properties(path, properties or {})
    if ADOPTED in texts:
        raise InvalidOptionError(
            f"table {path}: the property {ADOPTED} is reserved for adopted lake tables (adopt_table); leave it out"
        )
    if BRANCH in texts:
        raise InvalidOptionError(f"table {path}: the property {BRANCH} is reserved for branches; use create_branch")
    if adopted is not None:
        if has_constraints(texts):
            raise InvalidOptionError(
                f"table {path}: rows of an adopted lake table are not validated; adopt it without constraints, then "
                "add them with ALTER TABLE … ADD CONSTRAINT"
            )
        if has_generated_columns(texts):
            raise InvalidOptionError(
                f"table {path}: rows of an adopted lake table have no generated columns or identity values; adopt "
                "it without them, or create a new table with them and copy the rows"
            )
        texts[ADOPTED] = adopted
    if buckets is not None and texts.setdefault("bucket.num", str(buckets)) != str(buckets):
        raise InvalidOptionError(f"table {path}: buckets={buckets} and bucket.num={texts['bucket.num']}; give one")
    table_schema = schema if isinstance(schema, TableSchema) else TableSchema.of(schema)
    for column in table_schema.columns:  # also columns of an adopted lake table
        check_column_name(column.name)
    table_schema = with_defaults(table_schema, check_defaults(defaults))
    partitions = _parse_partitioning(path, partition_by, table_schema, texts)
    for name in partitions:
        require_unreserved_partition_name(name)
    if primary_key or texts.get(PRIMARY_KEY, "").strip():
        table_schema = _require_key_not_null(
            path, table_schema, primary_key, partitions, texts, chooses=chooses_bucket_key
        )
    parsed = parse_properties(texts, table_schema, partitions)
    return Create(str(path), table_schema, partitions, parsed.bucket_num, texts, "")


def _parse_partitioning(
    path: TablePath, partition_by: Sequence[str], schema: TableSchema, texts: dict[str, str]
) -> tuple[str, ...]:
    """Return the partition columns. If a field has a transform, store all fields in ``texts``."""
    field_texts = split_fields(texts.get(PARTITION_FIELDS, ""))
    fields, property_fields = parse_fields(partition_by or field_texts, schema), parse_fields(field_texts, schema)
    if field_texts and fields != property_fields:
        raise InvalidOptionError(
            f"table {path}: partition_by is {join_fields(fields)}, but the property {PARTITION_FIELDS} is "
            f"{join_fields(property_fields)}; leave one out"
        )
    texts.pop(PARTITION_FIELDS, None)
    if any(field.transform != "identity" for field in fields):
        texts[PARTITION_FIELDS] = join_fields(fields)
    return check_partition_columns([field.column for field in fields if field.transform == "identity"], schema)


def create_named_table(
    storage: Storage, world: World, path: TablePath, create: Create, opened: Callable[[CommitLog], T]
) -> T | None:
    """Create a table with its name, database and warehouse. Returns the result of ``opened``; None if it exists.

    ``opened`` opens the table, given its log. **Commit point:** the name's pointer. A crash before it leaves orphan
    files. Raises `CommitConflictError` if other processes repeatedly create and drop a table with this name.
    """
    for _ in range(NAME_RACES_MAX):
        database, pointer = names.prepare_name(storage, world, path)
        if not free_name(storage, world, path, pointer):
            return None
        uuid, since_ms = create_table_uuid(storage, world, create.properties), world.clock.boot_ms()
        action = place_lake_table(create, path, uuid, is_taken=pointer.number > 0)
        record = Record(1, uuid, world.ids.new_uuid(), storage.now_ms(), (action,), author=world.author)
        first = put_first_record(storage, record)
        if names.put_name_pointer(storage, path, pointer, uuid, world):
            log = CommitLog(storage, uuid, world, state=fold(None, first), since_ms=since_ms)
            return _record_database_and_open(storage, world, database, partial(opened, log))
    raise CommitConflictError(
        f"cannot create {path}: {NAME_RACES_MAX} attempts conflicted with other creators of this name; try again"
    )


def _record_database_and_open(
    storage: Storage, world: World, database: names.DatabasePointer, opened: Callable[[], T]
) -> T:
    """Record the database of a committed name, and open the table in parallel."""

    def keep() -> None:
        with log_post_commit_errors(logger, "keeping the database", database.name):
            names.ensure_database(storage, world, database)

    steps: list[Callable[[], T | None]] = [keep, opened]
    _, table = map_with_store_concurrency(storage, lambda step: step(), steps)
    return table  # type: ignore[return-value]


def _require_key_not_null(
    path: TablePath,
    schema: TableSchema,
    primary_key: Sequence[str],
    partitions: Sequence[str],
    texts: dict[str, str],
    *,
    chooses: bool,
) -> TableSchema:
    """Return the schema with a NOT NULL key. Store key and bucket key in ``texts``, in the spelling of the columns."""
    from streamhouse_spark.kv.primary_key_properties import parse_keyed_properties

    property_names = tuple(schema.column(name).name for name in parse_names(texts.get(PRIMARY_KEY, "")))
    names = tuple(schema.column(name).name for name in primary_key) or property_names
    if property_names and property_names != names:
        raise InvalidOptionError(
            f"table {path}: primary_key is {', '.join(names)}, but the property {PRIMARY_KEY} is "
            f"{', '.join(property_names)}; leave one out"
        )
    schema = TableSchema(tuple(replace(c, nullable=c.nullable and c.name not in names) for c in schema.columns))
    texts[PRIMARY_KEY] = join_names(names)
    parse_keyed_properties(texts, schema, partitions)
    chosen = default_bucket_key(names, partitions, schema) if chooses else None
    if chosen and not texts.get("bucket.key", "").strip():
        texts["bucket.key"] = join_names([chosen])
    if parse_properties(texts, schema, partitions).bucket_num > 1 and not texts.get("bucket.key", "").strip():
        raise InvalidOptionError(
            f"table {path}: bucket.num needs a bucket key, but no column of the primary key {', '.join(names)} that is "
            "not a partition column is suitable; leave bucket.num out, or add a column of integers, strings, dates or "
            "decimals to the key"
        )
    return schema


def _check_arguments(path: TablePath, primary_key: object, partition_by: object, properties: object) -> None:
    if not is_text_list(primary_key):
        raise InvalidOptionError(f"table {path}: primary_key is {primary_key!r}, expected a list of column names")
    if not isinstance(properties, Mapping | None):
        raise InvalidOptionError(f"table {path}: properties are {properties!r}, expected a mapping of texts")
    if not isinstance(partition_by, list | tuple) or not all(isinstance(name, str) for name in partition_by):
        raise InvalidOptionError(f"table {path}: partition_by is {partition_by!r}, expected a list of column names")


def place_lake_table(create: Create, path: TablePath, uuid: str, *, is_taken: bool) -> Create:
    """Return the action with the location of the lake table; an alternative location if the default is in use."""
    lake_format = parse_properties(create.properties, create.schema, create.partition_by).datalake_format
    return replace(create, lake_location=lake_location(path, uuid, has_conflict=is_taken, lake_format=lake_format))
