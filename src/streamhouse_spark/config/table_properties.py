"""Table properties, with Apache Fluss's names where Fluss has the property.

Properties that only primary-key tables have are in `streamhouse_spark.kv.primary_key_properties`. The page
``docs/reference/table-properties.md`` lists both.

A table stores its properties as the strings that the user set, and `parse_properties` parses them. Unknown names
outside the prefixes of this package are stored for the user. A value that looks like a credential is rejected. A branch
and a view are tables with a property that describes the branch or view.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, Literal, Self, cast, get_args

import pyarrow as pa

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import (
    find_nearest,
    join_names,
    looks_like_secret,
    parse_bool,
    parse_duration_ms,
    parse_int,
    parse_names,
    reject,
)
from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import CorruptDataError, InvalidOptionError, SchemaMismatchError, quote
from streamhouse_spark.expressions.check_constraints import CONSTRAINT, Check, check_constraint_name, parse_checks
from streamhouse_spark.expressions.generated_columns import GENERATED, Generated, parse_generated
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.identity import IDENTITY, Identity, parse_identity
from streamhouse_spark.schema.paimon_limits import check_paimon_columns, limited_columns
from streamhouse_spark.schema.partitioning import (
    AUTO_PARTITION_PROPERTIES,
    PARTITION_FIELDS,
    AutoPartition,
    PartitionField,
    parse_auto_partition,
    parse_fields,
    split_fields,
)
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.schema.variant import is_variant

BRANCH: Final = "table.branch"
VIEW: Final = "table.view"
Mode = Literal["incremental", "full"]
BUCKET_COUNT_MAX: Final = 16_384
Compression = Literal["none", "lz4", "zstd"]
LakeFormat = Literal["iceberg", "paimon"]
PRIMARY_KEY: Final = "primary.key"
ADOPTED: Final = "table.datalake.adopted"
NOTHING_ADOPTED: Final = "empty"
"""The value of `ADOPTED` if the lake table had no snapshot."""
LOG_LOCATION: Final = "table.log.location"
MERGE_ENGINE: Final = "table.merge-engine"
VERSION_COLUMN: Final = "table.merge-engine.versioned.ver-column"
DELETE_BEHAVIOR: Final = "table.delete.behavior"
CHANGELOG_IMAGE: Final = "table.changelog.image"
CHANGELOG_RETENTION: Final = "table.changelog.retention"
INSERT_EXISTING: Final = "table.merge-into.insert-existing"
FIELD: Final = re.compile(r"fields\.(?P<column>.+?)\.(?:(?P<agg>agg)|(?P<function>listagg|string_agg)\.delimiter)\Z")
"""The property of a column's aggregate function, in a table with ``table.merge-engine`` ``aggregation``."""
_OWN_PREFIXES: Final = (
    *("table.", "bucket.", "primary.", "partition.", "fields.", "streamhouse."),
    *("status.", "openlineage.", "option."),
)
"""Prefixes of this package's properties and of names that are displayed for a table. Users may set other names."""
_SPARK_NAMES: Final = frozenset({"provider", "location", "owner", "external", "is_managed_location", "collation"})
"""Names that Spark displays for every table."""
_TYPO_SIMILARITY: Final = 0.85
_NAME_CHARS_MAX: Final = 1000
FIXED_PROPERTIES: Final = frozenset(
    {
        "bucket.num",
        "bucket.key",
        "table.datalake.format",
        ADOPTED,
        LOG_LOCATION,
        PRIMARY_KEY,
        MERGE_ENGINE,
        VERSION_COLUMN,
        CHANGELOG_IMAGE,
        VIEW,
        BRANCH,
    }
)
"""Properties that cannot change after creation, because the layout of the data depends on them. Properties that `FIELD`
matches, and properties of generated and identity columns, are fixed as well."""
_LISTS_OF_NAMES: Final = frozenset({"bucket.key", PARTITION_FIELDS, PRIMARY_KEY})
"""Fixed properties that are equal if they differ in case and spaces only."""
_KNOWN: Final = (
    "bucket.num",
    "bucket.key",
    PARTITION_FIELDS,
    "table.datalake.enabled",
    "table.datalake.format",
    "table.datalake.freshness",
    "table.datalake.auto-compaction",
    "table.datalake.auto-expire-snapshot",
    ADOPTED,
    "table.log.ttl",
    LOG_LOCATION,
    "table.transactions.ttl",
    "table.log.arrow.compression.type",
    "table.statistics.columns",
    *AUTO_PARTITION_PROPERTIES,
    "comment",
    f"{CONSTRAINT}<name>",
    f"{GENERATED}<column>",
    f"{IDENTITY}<column>",
    PRIMARY_KEY,
    MERGE_ENGINE,
    VERSION_COLUMN,
    DELETE_BEHAVIOR,
    CHANGELOG_IMAGE,
    CHANGELOG_RETENTION,
    INSERT_EXISTING,
    VIEW,
    BRANCH,
    "fields.<column>.agg",
    "fields.<column>.listagg.delimiter",
)
_KEYED: Final = (
    *(VIEW, PRIMARY_KEY, MERGE_ENGINE, VERSION_COLUMN, DELETE_BEHAVIOR),
    *(CHANGELOG_IMAGE, CHANGELOG_RETENTION, INSERT_EXISTING),
)
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+[^/]")
_LAKE_FORMATS: Final[dict[str, LakeFormat]] = {"iceberg": "iceberg", "paimon": "paimon"}
_COMPRESSIONS: Final[dict[str, Compression]] = {"none": "none", "lz4": "lz4", "lz4_frame": "lz4", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class BranchMetadata:
    """Marks a log as the log of a branch."""

    of: str
    """UUID of the table that the branch belongs to."""
    name: str
    version: int
    """The table's version at which the branch started."""
    is_sealed: bool = False
    """Whether the branch accepts no more rows, because it is being published."""

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """Return the branch metadata; None for a table."""
        if (text := properties.get(BRANCH)) is None:
            return None
        try:
            mark = json.loads(text)
            return cls(str(mark["of"]), str(mark["name"]), int(mark["version"]), bool(mark["is_sealed"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(f"a log has the invalid property {BRANCH} = {quote(text)}; restore it") from error


@dataclass(frozen=True, slots=True)
class ViewDefinition:
    """The definition of a materialized table."""

    query: str
    mode: Mode
    freshness_ms: int
    names: tuple[str, ...]
    """The columns of the query."""
    identity: str
    """How the primary key is derived from a row: natural, hash or bag."""
    session: Mapping[str, str]
    """Session settings that affect the query's values."""
    paused: bool = False
    """Whether services skip the view. Versions without this field can read a paused view, but do not refresh it."""
    step_rows: int | None = None
    """Approximate number of source rows per commit; None for no limit."""

    def to_text(self) -> str:
        """Return the property's value. Fields of later versions are omitted if they have their default."""
        fields = asdict(self)
        if not self.paused:
            del fields["paused"]
        if self.step_rows is None:
            del fields["step_rows"]
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    def to_facts(self) -> dict[str, Any]:
        """Return the displayed properties of a view."""
        freshness_s = self.freshness_ms / 1000
        return {"query": self.query, "mode": self.mode, "freshness_s": freshness_s, "paused": self.paused}

    @classmethod
    def of(cls, properties: Mapping[str, str], table: str) -> ViewDefinition:
        """Return the definition of a view's table. Raises `InvalidOptionError` for any other table."""
        text = properties.get(VIEW)
        if text is None:
            raise InvalidOptionError(
                f"{table} is not a materialized table; create one with streamhouse_spark.materialize"
            )
        try:
            fields: dict[str, Any] = json.loads(text)
            return cls(**{**fields, "names": tuple(fields["names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidOptionError(
                f"{table} has the invalid property {VIEW} = {quote(text)}; restore the table"
            ) from error


def parse_mode(mode: str) -> Mode:
    if mode not in get_args(Mode):
        raise InvalidOptionError(f"mode is {quote(mode)}, expected incremental or full")
    return cast("Mode", mode)


def parse_step_rows(step_rows: int | None, mode: Mode) -> int | None:
    if step_rows is None:
        return None
    if type(step_rows) is not int or step_rows < 1:
        raise InvalidOptionError(f"step_rows is {quote(step_rows)}, expected a whole number of rows above 0, or None")
    if mode == "full":
        raise InvalidOptionError(
            "step_rows is set and mode is full, in which each refresh computes the whole query; leave step_rows out, "
            "or use mode='incremental'"
        )
    return step_rows


def parse_freshness_ms(freshness: str) -> int:
    return parse_duration_ms("freshness", freshness)


def describe_view_properties(properties: Mapping[str, str], table: str) -> dict[str, Any] | None:
    """Return the displayed properties of a view; None for any other table."""
    return ViewDefinition.of(properties, table).to_facts() if VIEW in properties else None


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The parsed properties of a table. Unset properties have their default."""

    bucket_num: int = 1
    """``bucket.num``: number of buckets of the log. Fixed at creation."""
    bucket_key: tuple[str, ...] = ()
    """``bucket.key``: the column whose hash determines a row's bucket. By default, each batch is written to one bucket.
    Fixed at creation.
    """
    datalake_enabled: bool = True
    """``table.datalake.enabled``: whether the tiering service moves the table's rows into a lake table."""
    datalake_format: LakeFormat = "iceberg"
    """``table.datalake.format``: format of the lake table, ``iceberg`` or ``paimon``. Its hash function also determines
    the buckets. Fixed at creation.
    """
    datalake_freshness_ms: int = 180_000
    """``table.datalake.freshness``: maximum lag of the lake behind the log while the tiering service runs."""
    datalake_auto_compaction: bool = True
    """``table.datalake.auto-compaction``: whether tiering also compacts small lake files. False by default for an
    adopted lake table, because the table does not own all its files.
    """
    datalake_auto_expire_snapshot: bool = True
    """``table.datalake.auto-expire-snapshot``: whether tiering also expires old lake snapshots. False by default for an
    adopted lake table.
    """
    log_ttl_ms: int = 7 * 86_400_000
    """``table.log.ttl``: retention of rows in the log, extended until the rows are in the lake; 0 is forever."""
    changelog_retention_ms: int | None = None
    """``table.changelog.retention``: retention of the changes of a primary-key table, first in the log and then in the
    change archive; None for the retention of the log.
    """
    log_location: str | None = None
    """``table.log.location``: path or URL of a separate store for the table's log; None for the warehouse. Fixed at
    creation.
    """
    transactions_ttl_ms: int = 30 * 86_400_000
    """``table.transactions.ttl``: how long the table remembers the offsets of an application's last write; 0 is
    forever. Afterwards it remembers only the version, so a version is never stored twice.
    """
    log_compression: Compression = "none"
    """``table.log.arrow.compression.type``: codec of new segments."""
    statistics_columns: tuple[str, ...] = ()
    """``table.statistics.columns``: columns whose minimum, maximum and null count every segment records for data
    skipping; ``*`` means all columns that support them. The default is partition columns, the bucket key, and date and
    timestamp columns.
    """
    datalake_adopted: str | None = None
    """``table.datalake.adopted``: the latest snapshot of the adopted lake table, or ``empty``. Set by adoption."""
    comment: str | None = None
    """``comment``: the user's description of the table."""
    partition_fields: tuple[PartitionField, ...] = ()
    """``partition.fields``: all partition fields in order, if one has a transform, such as ``days(ts)``. The default is
    the partition columns. Changed only by `Table.set_partitioning`.
    """
    primary_key: tuple[str, ...] = ()
    """``primary.key``: the columns that identify a row; empty for a log table. Fixed at creation."""
    auto_partition: AutoPartition | None = None
    """``table.auto-partition.*``: the partitions whose rows leave the log once they are in the lake, before
    ``table.log.ttl``; None if ``table.auto-partition.enabled`` is false.
    """

    checks: tuple[Check, ...] = ()
    """``table.constraint.<name>``: conditions that must be true or null for every row."""
    generated: tuple[Generated, ...] = ()
    """``table.generated.<column>``: expressions of generated columns. Fixed at creation."""
    identity: Identity | None = None
    """``table.identity.<column>``: the column whose numbers the table allocates. Fixed at creation."""

    limited_columns: tuple[str, ...] = ()
    """Date and timestamp columns in the key or partitions of a Paimon lake, which support only the years 1 to 9999."""

    @property
    def partition_sources(self) -> tuple[str, ...]:
        """The columns that determine the partition of a row: partition columns and sources of transforms."""
        return tuple(field.column for field in self.partition_fields)

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """The partition fields as arguments for ``partition_by`` of `Warehouse.create_table`."""
        fields = self.partition_fields
        return tuple(field.column if field.transform == "identity" else str(field) for field in fields)


def parse_properties(
    properties: Mapping[str, str], schema: TableSchema, partition_by: Sequence[str] = ()
) -> TableProperties:
    """Parse the properties of a table with this schema and these partition columns.

    `streamhouse_spark.kv.primary_key_properties` parses the properties that require ``primary.key``; they are rejected
    here if it is missing. Raises `InvalidOptionError` for an unknown name under this package's prefixes, an invalid
    value, an unsuitable column, and a value that looks like a credential; `SchemaMismatchError` for a column that the
    lake does not support.
    """
    for name, value in properties.items():
        check_property_name(name)
        if not is_unicode(value):
            raise InvalidOptionError(f"property {name} is {value[:100]!r}, which is not valid Unicode; correct it")
        if not name.startswith((CONSTRAINT, GENERATED, IDENTITY)) and looks_like_secret(name, value):
            raise InvalidOptionError(
                f"property {name} has a value that looks like a credential, and all users can read properties; set "
                "credentials in s3.* options or in the environment"
            )
    partitions = check_partition_columns(partition_by, schema)
    fields = _partition_fields(properties, partitions, schema)
    sources = [field.column for field in fields]
    default = TableProperties()
    get = properties.get
    primary_key = _primary_key(properties, schema)
    lake_format = get("table.datalake.format", default.datalake_format).strip().lower()
    if lake_format not in _LAKE_FORMATS:
        reject("table.datalake.format", lake_format, "iceberg or paimon")
    bucket_key = _bucket_key(get("bucket.key", ""), schema, _LAKE_FORMATS[lake_format])
    if primary_key and not set(bucket_key) <= set(primary_key):
        reject("bucket.key", get("bucket.key", ""), f"a column of the primary key {', '.join(primary_key)}")
    codec = get("table.log.arrow.compression.type", default.log_compression).strip().lower()
    if codec not in _COMPRESSIONS:
        reject("table.log.arrow.compression.type", codec, "none, lz4 or zstd")
    lake_enabled = _parse_bool_property(properties, "table.datalake.enabled", default=default.datalake_enabled)
    owns_files = ADOPTED not in properties
    parsed = TableProperties(
        bucket_num=parse_int("bucket.num", get("bucket.num", "1"), minimum=1, maximum=BUCKET_COUNT_MAX),
        bucket_key=bucket_key,
        datalake_enabled=lake_enabled,
        datalake_format=_LAKE_FORMATS[lake_format],
        datalake_freshness_ms=_parse_duration_property(
            properties, "table.datalake.freshness", default.datalake_freshness_ms
        ),
        datalake_auto_compaction=_parse_bool_property(
            properties, "table.datalake.auto-compaction", default=default.datalake_auto_compaction and owns_files
        ),
        datalake_auto_expire_snapshot=_parse_bool_property(
            properties,
            "table.datalake.auto-expire-snapshot",
            default=default.datalake_auto_expire_snapshot and owns_files,
        ),
        log_ttl_ms=_parse_duration_property(properties, "table.log.ttl", default.log_ttl_ms),
        changelog_retention_ms=_parse_retention_property(get(CHANGELOG_RETENTION)),
        log_location=_log_location(get(LOG_LOCATION)),
        transactions_ttl_ms=_parse_duration_property(properties, "table.transactions.ttl", default.transactions_ttl_ms),
        log_compression=_COMPRESSIONS[codec],
        statistics_columns=_statistics_columns(get("table.statistics.columns"), schema, (*sources, *bucket_key)),
        datalake_adopted=get(ADOPTED),
        comment=get("comment"),
        partition_fields=fields,
        primary_key=primary_key,
        auto_partition=parse_auto_partition(properties, schema, partitions, lake_enabled=lake_enabled),
        checks=parse_checks(properties, schema),
        generated=parse_generated(properties, schema),
        identity=parse_identity(properties, schema),
        limited_columns=limited_columns(schema, (*primary_key, *sources)) if lake_format == "paimon" else (),
    )
    if parsed.checks and VIEW in properties:
        raise InvalidOptionError("a materialized table cannot have a constraint; leave it out")
    _require_computable(parsed, properties)
    if parsed.datalake_enabled:
        check_variants(schema, parsed.datalake_format)
    if parsed.datalake_format == "paimon":
        for field in fields:
            if field.transform != "identity":
                raise InvalidOptionError(
                    f"PARTITIONED BY {field}: found a transform and a Paimon lake; partition by columns, or use iceberg"
                )
        check_paimon_columns(schema, partitions, bucket_key, primary_key)
    return parsed


def _require_computable(parsed: TableProperties, properties: Mapping[str, str]) -> None:
    """Reject generated and identity columns whose values are required before the writer computes them."""
    merged = {match["column"].casefold(): name for name in properties if (match := FIELD.match(name))}
    roles = {
        **{name.casefold(): f"part of {PRIMARY_KEY}" for name in parsed.primary_key},
        **{name.casefold(): "part of bucket.key" for name in parsed.bucket_key},
        **{name: f"named by the property {key}" for name, key in merged.items()},
        properties.get(VERSION_COLUMN, "").strip().casefold(): f"the {VERSION_COLUMN}",
    }
    for column in parsed.generated:
        if VIEW in properties:
            raise InvalidOptionError("a materialized table cannot have a generated column; leave it out")
        if column.name.casefold() in roles:
            raise InvalidOptionError(
                f"column '{column.name}' is generated and {roles[column.name.casefold()]}, whose values writers must "
                "provide; choose another column"
            )
    if (identity := parsed.identity) is None:
        return
    if VIEW in properties:
        raise InvalidOptionError("a materialized table cannot have an identity column; leave it out")
    roles |= {name.casefold(): "the source of a partition field" for name in parsed.partition_sources}
    roles |= {
        c.casefold(): f"used by the generated column '{g.name}'"
        for g in parsed.generated
        for c in (g.name, *g.expression.columns())
    }
    if identity.name.casefold() in roles:
        raise InvalidOptionError(
            f"column '{identity.name}' is an identity column and {roles[identity.name.casefold()]}, but its numbers "
            "are allocated only when rows are stored; choose another column"
        )


def is_keyed_property(name: str) -> bool:
    """Return whether the property requires a primary key."""
    return name in _KEYED or FIELD.match(name) is not None


def default_bucket_key(primary_key: Sequence[str], partition_by: Sequence[str], schema: TableSchema) -> str | None:
    """Return the default bucket key of a primary-key table: the first suitable column of the key.

    Partition columns are not suitable, because they would put all rows of a partition into one bucket.
    """
    partitions = {schema.column(name).name for name in partition_by}
    names = [schema.column(name).name for name in primary_key]
    candidates = [name for name in names if name not in partitions and _can_be_bucketed(schema.column(name).type)]
    return candidates[0] if candidates else None


def check_property_name(name: str) -> None:
    """Raise `InvalidOptionError` for an unknown name under this package's prefixes.

    Other names are permitted, unless they resemble a known property or contain unprintable characters.
    """
    if name in _KNOWN or is_keyed_property(name):
        return
    if name.startswith(CONSTRAINT):
        check_constraint_name(name)
        return
    if name.startswith((GENERATED, IDENTITY)):
        return
    folded = name.casefold()
    is_own = folded in _SPARK_NAMES or folded.startswith(_OWN_PREFIXES)
    nearest_name = find_nearest(name, _KNOWN, similarity=0.5 if is_own else _TYPO_SIMILARITY)
    if is_own or (nearest_name and "." in nearest_name):
        hint = f"did you mean {nearest_name}?" if nearest_name else f"supported are {', '.join(_KNOWN)}"
        raise InvalidOptionError(f"unknown table property {name[:100]!r}; {hint}")
    if not name.strip() or not is_unicode(name) or not name.isprintable() or len(name) > _NAME_CHARS_MAX:
        raise InvalidOptionError(
            f"property name is {name[:100]!r}, expected 1 to {_NAME_CHARS_MAX} printable characters; choose another "
            "name"
        )


def alter_properties(
    current: Mapping[str, str], set_values: Mapping[str, str], unset: Iterable[str] = ()
) -> dict[str, str]:
    """Return the properties after an ALTER, which the caller validates with `parse_properties`.

    Raises `InvalidOptionError` if a fixed property would change.
    """
    changed = {**current, **set_values}
    for name in _LISTS_OF_NAMES & current.keys() & set_values.keys():
        before, after = ([name.casefold() for name in parse_names(texts[name])] for texts in (current, set_values))
        if before == after:
            changed[name] = current[name]
    for name in unset:
        check_property_name(name)
        changed.pop(name, None)
    fixed = {n for n in (*current, *changed) if FIELD.match(n) or n.startswith((GENERATED, IDENTITY))}
    if changed.get(PARTITION_FIELDS) != current.get(PARTITION_FIELDS):
        raise InvalidOptionError(
            f"property {PARTITION_FIELDS} is {current.get(PARTITION_FIELDS, 'its default')!r} and cannot be set; "
            "change the partitioning with set_partitioning(…) (in SQL CALL streamhouse.system.set_partitioning)"
        )
    for name in sorted(FIXED_PROPERTIES | fixed):
        if changed.get(name) != current.get(name):
            raise InvalidOptionError(
                f"property {name} is fixed at creation: found {changed.get(name, 'its default')!r}, expected "
                f"{current.get(name, 'its default')!r}; create a new table and copy the rows"
            )
    return changed


def check_partition_columns(partition_by: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """Return the partition columns as the schema spells them.

    Raises `InvalidOptionError` for a nested or duplicate column, or if no other column remains, and
    `SchemaMismatchError` for an unknown column.
    """
    columns = _distinct("the partition columns", partition_by, schema)
    for name in columns:
        if pa.types.is_nested(schema.column(name).type):
            kind = type_name(schema.column(name).type)
            raise InvalidOptionError(
                f"partition column '{name}' has type {kind}, expected a plain type; choose another"
            )
    if len(columns) == len(schema.columns):
        raise InvalidOptionError(
            f"all columns ({', '.join(columns)}) are partition columns; partition by fewer columns"
        )
    return columns


def _partition_fields(
    properties: Mapping[str, str], partitions: tuple[str, ...], schema: TableSchema
) -> tuple[PartitionField, ...]:
    text = properties.get(PARTITION_FIELDS)
    if text is None:
        return tuple(PartitionField(name) for name in partitions)
    fields = parse_fields(split_fields(text), schema)
    if tuple(field.column for field in fields if field.transform == "identity") != partitions:
        reject(PARTITION_FIELDS, text, f"the partition columns ({join_names(partitions)}) and transforms")
    return fields


def has_statistics(arrow: pa.DataType) -> bool:
    """Return whether segments can record the minimum and maximum of a column of this type."""
    return not (pa.types.is_nested(arrow) or pa.types.is_binary(arrow) or pa.types.is_boolean(arrow))


def _log_location(text: str | None) -> str | None:
    if text is None:
        return None
    location = text.strip()
    if not (location.startswith("/") or _URL.match(location)) or "\0" in location:
        reject(LOG_LOCATION, text, "an absolute path or a URL, such as s3://bucket/logs")
    return location


def _parse_retention_property(text: str | None) -> int | None:
    if text is None:
        return None
    retention_ms = parse_duration_ms(CHANGELOG_RETENTION, text)
    if retention_ms == 0:
        reject(CHANGELOG_RETENTION, text, "a duration above 0, or no value for the retention of the log")
    return retention_ms


def _primary_key(properties: Mapping[str, str], schema: TableSchema) -> tuple[str, ...]:
    if PRIMARY_KEY in properties:
        return _distinct(PRIMARY_KEY, parse_names(properties[PRIMARY_KEY]), schema)
    for name in properties:
        if is_keyed_property(name):
            raise InvalidOptionError(
                f"property {name} requires a primary key; set {PRIMARY_KEY}, or leave the property out"
            )
    return ()


def _can_be_bucketed(arrow: pa.DataType) -> bool:
    return not (pa.types.is_nested(arrow) or pa.types.is_floating(arrow) or pa.types.is_boolean(arrow))


def _bucket_key(text: str, schema: TableSchema, lake_format: LakeFormat) -> tuple[str, ...]:
    key = _distinct("bucket.key", parse_names(text), schema)
    if len(key) > 1 and lake_format == "iceberg":
        reject("bucket.key", text, "one column, because an Iceberg bucket is computed from one column")
    for name in key:
        arrow = schema.column(name).type
        if not _can_be_bucketed(arrow):
            raise InvalidOptionError(
                f"bucket.key '{name}' has type {type_name(arrow)}, expected integers, decimals, strings, binary, dates "
                "or timestamps; choose another column"
            )
    return key


def _statistics_columns(text: str | None, schema: TableSchema, always: tuple[str, ...]) -> tuple[str, ...]:
    candidates = [column for column in schema.columns if has_statistics(column.type)]
    if text is None:
        names = set(always) | {c.name for c in candidates if pa.types.is_temporal(c.type)}
    elif text.strip() == "*":
        return tuple(column.name for column in candidates)
    else:
        names = set(_distinct("table.statistics.columns", parse_names(text), schema))
        for name in names - {column.name for column in candidates}:
            kind = type_name(schema.column(name).type)
            raise InvalidOptionError(
                f"table.statistics.columns has '{name}' of type {kind}, which has no statistics; leave it out"
            )
    return tuple(column.name for column in candidates if column.name in names)


def _distinct(role: str, names: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    columns = tuple(schema.column(name).name for name in names)
    for name in columns:
        if columns.count(name) > 1:
            raise InvalidOptionError(f"{role}: column '{name}' occurs twice; name it once")
    return columns


def _parse_bool_property(properties: Mapping[str, str], name: str, *, default: bool) -> bool:
    return parse_bool(name, properties[name]) if name in properties else default


def _parse_duration_property(properties: Mapping[str, str], name: str, default: int) -> int:
    return parse_duration_ms(name, properties[name]) if name in properties else default


def check_variants(schema: TableSchema, lake_format: str) -> None:
    """Reject VARIANT columns if the lake does not support them. Raises `SchemaMismatchError`."""
    if lake_format == "paimon":
        return
    for column in schema.columns:
        if is_variant(column.type):
            raise SchemaMismatchError(
                f"column '{column.name}' is VARIANT, which requires Iceberg's format 3, and pyiceberg cannot write "
                "that; choose a Paimon lake (table.datalake.format=paimon) or no lake (table.datalake.enabled=false), "
                "or store JSON as STRING"
            )
