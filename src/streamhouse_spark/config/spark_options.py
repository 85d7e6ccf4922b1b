"""Options of Spark reads, streams and writes, parsed into frozen values.

Names are camelCase as in Spark, and case-insensitive, because Spark passes them in lower case. The error for an unknown
option names the nearest option, and the error for an option of another connector names our equivalent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal, NoReturn

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.option_parsing import (
    find_nearest,
    parse_bool,
    parse_int,
    parse_size_bytes,
    parse_timestamp_ms,
    reject,
)
from streamhouse_spark.core.types import Transaction, check_app_id
from streamhouse_spark.errors import InvalidOptionError

WAREHOUSE_VARIABLE: Final = "STREAMHOUSE_WAREHOUSE"
EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
BUCKET_MAX: Final = 2**31 - 1

Mode = Literal["read", "readStream", "write", "writeStream"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its name, the modes that support it, and its description."""

    name: str
    modes: tuple[Mode, ...]
    meaning: str


_READS: Final[tuple[Mode, ...]] = ("read", "readStream")
_ALL: Final[tuple[Mode, ...]] = ("read", "readStream", "write", "writeStream")
OPTIONS: Final = (
    Option("warehouse", _ALL, f"directory or URL of the warehouse; else the environment variable {WAREHOUSE_VARIABLE}"),
    Option("path", _ALL, "the table name, as load(…), save(…) and start(…) set it"),
    Option(
        "startingOffsets",
        _READS,
        'full (lake, then log; the default), earliest, latest (streams), or JSON {"<bucket>": offset}, inclusive, '
        "-2 earliest, -1 latest",
    ),
    Option("startingTimestamp", _READS, "rows committed at this time or later; overrides startingOffsets"),
    Option("endingOffsets", ("read",), 'latest (the default), or JSON {"<bucket>": offset}, exclusive, -1 latest'),
    Option("endingTimestamp", ("read",), "rows committed before this time; overrides endingOffsets"),
    Option("maxOffsetsPerTrigger", ("readStream",), "maximum rows per micro-batch, over all buckets"),
    Option(
        "maxBytesPerTrigger",
        ("readStream",),
        "approximate in-memory bytes of rows per micro-batch, such as 64mb; a batch has at least one row, and at least "
        "1,000 rows or 1 MiB, whichever is less",
    ),
    Option(
        "onDifferentHistory",
        ("readStream",),
        "if the table was restored from a backup: fail, or continue at the checkpoint's offsets (default fail)",
    ),
    Option(
        "failOnDataLoss", _READS, "false: skip offsets that are no longer retained, instead of failing (default true)"
    ),
    Option(
        "skipChangeCommits",
        ("readStream",),
        "true: for a log table, continue after commits that delete rows already read; for a `$changelog`, omit "
        "deletions (default false)",
    ),
    Option("readChangeFeed", _READS, "true: read the changelog, with _change_type, _log_offset, _commit_timestamp"),
    Option("includeMetadata", _READS, "true: add _bucket, _log_offset and _commit_timestamp to the columns"),
    Option("asOfLakeSnapshot", ("read",), "read the lake at this snapshot id"),
    Option(
        "asOfTimestamp",
        ("read",),
        "read the rows and columns of the table, or its lake, as of this time: milliseconds since 1970, or ISO 8601 "
        "with a zone, such as `2026-01-31T12:00:00Z`",
    ),
    Option(
        "schemaEvolutionMode",
        ("readStream",),
        "none (the default): the stream ignores columns that are added while it runs; addNewColumns: the stream stops "
        "with an error before the first row with a new column, and reads the column after a restart",
    ),
    Option("consumerId", ("readStream",), "name of a consumer whose position prevents trimming of the log"),
    Option(
        "realTimeTasks",
        ("readStream",),
        "in real-time mode: number of tasks that follow the log concurrently, each for some buckets (default 1)",
    ),
    Option("txnAppId", ("write", "writeStream"), "with txnVersion: id of the application of an idempotent write"),
    Option(
        "txnVersion", ("write",), "with txnAppId: version of the write; a version that is already stored adds nothing"
    ),
    Option(
        "rowKindColumn",
        ("write", "writeStream"),
        "a column with the change type of each row: insert, update_after, delete, or +I, +U, -D, or c, r, u, d; rows "
        "with update_before or -U are skipped",
    ),
    Option(
        "partialUpdate",
        ("write", "writeStream"),
        "true: write only the columns of the frame, which include the primary key",
    ),
    Option(
        "mergeSchema",
        ("write", "writeStream"),
        "true: columns missing from the table are added to it, nullable and at the end, before rows are written",
    ),
    Option(
        "replaceWhere",
        ("write",),
        "with mode overwrite: a SQL condition; the new rows replace the matching rows, and must match it themselves",
    ),
    Option("checkpointLocation", ("writeStream",), "where Spark stores the stream's state"),
    Option("queryName", ("writeStream",), "Spark's name of the stream"),
)
"""All options, except the settings with a prefix of `SETTING_PREFIXES`."""

SETTING_PREFIXES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "storage.", "lake.", "log.")
"""Prefixes of warehouse settings, which are passed through."""

_BY_FOLDED_NAME: Final = {option.name.lower(): option for option in OPTIONS}

_FOREIGN: Final = {
    "versionasof": "asOfLakeSnapshot, on orders$lake",
    "snapshot-id": "asOfLakeSnapshot, on orders$lake",
    "scan.snapshot-id": "asOfLakeSnapshot, on orders$lake",
    "timestampasof": "asOfTimestamp",
    "as-of-timestamp": "asOfTimestamp",
    "scan.timestamp-millis": "asOfTimestamp",
    "readchangedata": "readChangeFeed",
    "read.changelog": "readChangeFeed",
    "startingversion": "startingOffsets",
    "endingversion": "endingOffsets",
    "scan.startup.mode": "startingOffsets",
    "scan.mode": "startingOffsets",
    "scan.startup.timestamp": "startingTimestamp",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "stream-from-timestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "maxfilespertrigger": "maxBytesPerTrigger",
    "maxrowspertrigger": "maxOffsetsPerTrigger",
    "read.stream.maxrowspertrigger": "maxOffsetsPerTrigger",
    "read.stream.maxbytespertrigger": "maxBytesPerTrigger",
    "read.stream.maxfilespertrigger": "maxBytesPerTrigger",
    "streaming-max-rows-per-micro-batch": "maxOffsetsPerTrigger",
    "streaming-max-files-per-micro-batch": "maxBytesPerTrigger",
    "cloudfiles.schemaevolutionmode": "schemaEvolutionMode",
    "consumer-id": "consumerId",
    "group.id": "consumerId",
    "kafka.group.id": "consumerId",
    "subscribe": 'the table name in load("<database>.<table>")',
    "topic": 'the table name in save("<database>.<table>")',
    "table": 'the table name in load("<database>.<table>")',
    "dbtable": 'the table name in load("<database>.<table>")',
    "database": 'the table name in load("<database>.<table>")',
    "bootstrap.servers": "warehouse, because there is no server",
    "kafka.bootstrap.servers": "warehouse, because there is no server",
    "read.optimized": "the suffix $lake after the table name",
    "overwriteschema": "ALTER TABLE before the write, or mergeSchema to add columns",
}
"""Options of other connectors, in lower case → the equivalent."""


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """Start or end offsets: a keyword for all buckets, or an offset per bucket."""

    kind: Literal["full", "earliest", "latest", "offsets"]
    offsets: Mapping[int, int] = field(default_factory=dict)
    """For kind ``offsets``: bucket → offset, `EARLIEST_OFFSET` or `LATEST_OFFSET`."""


FULL: Final = OffsetSpec("full")
EARLIEST: Final = OffsetSpec("earliest")
LATEST: Final = OffsetSpec("latest")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a batch read. Timestamps are milliseconds since 1970-01-01 UTC."""

    starting_offsets: OffsetSpec = FULL
    starting_timestamp_ms: int | None = None
    """First commit time, inclusive. Overrides ``starting_offsets``."""
    ending_offsets: OffsetSpec = LATEST
    ending_timestamp_ms: int | None = None
    """Commit time at which to end, exclusive. Overrides ``ending_offsets``."""
    as_of_lake_snapshot: int | None = None
    as_of_timestamp_ms: int | None = None
    """The last commit time, inclusive."""
    read_change_feed: bool = False
    include_metadata: bool = False
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class StreamReadOptions:
    """Options of a streaming read. A checkpoint overrides the start."""

    starting_offsets: OffsetSpec = FULL
    starting_timestamp_ms: int | None = None
    """First commit time, inclusive. Overrides ``starting_offsets``."""
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    read_change_feed: bool = False
    include_metadata: bool = False
    include_row_ids: bool = False
    """Whether rows include the row ids of catalog tables."""
    fail_on_data_loss: bool = True
    skips_change_commits: bool = False
    """``skipChangeCommits``: continue after deletions of rows that the stream has read and cannot retract."""
    consumer_id: str | None = None
    adds_new_columns: bool = False
    """``schemaEvolutionMode=addNewColumns``: stop before the first row with a column that the query does not have."""
    real_time_tasks: int = 1
    """``realTimeTasks``: number of tasks that follow the log in real-time mode. Micro-batches ignore it."""
    continues_in_other_history: bool = False
    """``onDifferentHistory=continue``: continue at the checkpoint's offsets after the table was restored."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a batch write."""

    transaction: Transaction | None = None
    """The transaction of ``txnAppId`` and ``txnVersion``."""
    row_kind_column: str | None = None
    partial_update: bool = False
    merge_schema: bool = False
    replace_where: str | None = None


@dataclass(frozen=True, slots=True)
class StreamWriteOptions:
    """Options of a streaming write. Batch ids are its transaction versions."""

    app_id: str | None = None
    """The option ``txnAppId``; the query id by default."""
    row_kind_column: str | None = None
    partial_update: bool = False
    merge_schema: bool = False


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch read. Raises `InvalidOptionError`."""
    texts = _validate_options(options, "read")
    parsed = ReadOptions(
        starting_offsets=_parse_offsets_option(texts, "startingOffsets", FULL, words=("full", "earliest")),
        starting_timestamp_ms=_parse_timestamp_option(texts, "startingTimestamp", round_up=True),
        ending_offsets=_parse_offsets_option(texts, "endingOffsets", LATEST, words=("latest",)),
        ending_timestamp_ms=_parse_timestamp_option(texts, "endingTimestamp", round_up=True),
        as_of_lake_snapshot=_parse_int_option(texts, "asOfLakeSnapshot", minimum=0),
        as_of_timestamp_ms=_parse_timestamp_option(texts, "asOfTimestamp", round_up=False),
        read_change_feed=_parse_bool_option(texts, "readChangeFeed", default=False),
        include_metadata=_parse_bool_option(texts, "includeMetadata", default=False),
        fail_on_data_loss=_parse_bool_option(texts, "failOnDataLoss", default=True),
    )
    _check_ranges(parsed, texts)
    return parsed


def parse_stream_read_options(options: Mapping[str, str]) -> StreamReadOptions:
    """Parse the options of a streaming read. Raises `InvalidOptionError`."""
    texts = _validate_options(options, "readStream")
    max_bytes = texts.get("maxBytesPerTrigger")
    return StreamReadOptions(
        starting_offsets=_parse_offsets_option(texts, "startingOffsets", FULL, words=("full", "earliest", "latest")),
        starting_timestamp_ms=_parse_timestamp_option(texts, "startingTimestamp", round_up=True),
        max_offsets_per_trigger=_parse_int_option(texts, "maxOffsetsPerTrigger", minimum=1),
        max_bytes_per_trigger=None if max_bytes is None else parse_size_bytes("maxBytesPerTrigger", max_bytes),
        read_change_feed=_parse_bool_option(texts, "readChangeFeed", default=False),
        include_metadata=_parse_bool_option(texts, "includeMetadata", default=False),
        fail_on_data_loss=_parse_bool_option(texts, "failOnDataLoss", default=True),
        skips_change_commits=_parse_bool_option(texts, "skipChangeCommits", default=False),
        consumer_id=_parse_id_option(texts, "consumerId"),
        adds_new_columns=_parse_keyword_option(texts, "schemaEvolutionMode", ("none", "addNewColumns"))
        == "addNewColumns",
        real_time_tasks=_parse_int_option(texts, "realTimeTasks", minimum=1) or 1,
        continues_in_other_history=_parse_keyword_option(texts, "onDifferentHistory", ("fail", "continue"))
        == "continue",
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a batch write. Raises `InvalidOptionError`."""
    texts = _validate_options(options, "write")
    app_id, version = _parse_id_option(texts, "txnAppId"), _parse_int_option(texts, "txnVersion", minimum=0)
    if (app_id is None) != (version is None):
        present, missing = ("txnAppId", "txnVersion") if version is None else ("txnVersion", "txnAppId")
        raise InvalidOptionError(f"found option {present} without {missing}; set both, or neither")
    return WriteOptions(
        None if app_id is None or version is None else Transaction(app_id, version),
        texts.get("rowKindColumn"),
        _parse_bool_option(texts, "partialUpdate", default=False),
        _parse_bool_option(texts, "mergeSchema", default=False),
        texts.get("replaceWhere"),
    )


def parse_stream_write_options(options: Mapping[str, str]) -> StreamWriteOptions:
    """Parse the options of a streaming write. Raises `InvalidOptionError`."""
    texts = _validate_options(options, "writeStream")
    return StreamWriteOptions(
        _parse_id_option(texts, "txnAppId"),
        texts.get("rowKindColumn"),
        _parse_bool_option(texts, "partialUpdate", default=False),
        _parse_bool_option(texts, "mergeSchema", default=False),
    )


def resolve_warehouse(options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the warehouse from the option ``warehouse``, or from the environment. Raises `InvalidOptionError`.

    Must be called on the driver, because executors may have another environment.
    """
    warehouse = _fold_option_names(options).get("warehouse", environ.get(WAREHOUSE_VARIABLE, "")).strip()
    if not warehouse:
        raise InvalidOptionError(
            'found no warehouse; set .option("warehouse", "<directory or URL>"), or the environment variable '
            f"{WAREHOUSE_VARIABLE}"
        )
    return warehouse


def table_option(options: Mapping[str, str], mode: Mode) -> str:
    """Return the table name passed to ``load``, ``save`` or ``start``. Raises `InvalidOptionError`."""
    name = _fold_option_names(options).get("path", "").strip()
    if name:
        return name
    if mode in _READS:
        raise InvalidOptionError('found no table name; use .load("<database>.<table>")')
    call = "save" if mode == "write" else "start"
    raise InvalidOptionError(
        f'found no table name; use .{call}("<database>.<table>"), or write through the catalog with saveAsTable or '
        "toTable"
    )


def warehouse_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the warehouse settings in the options, such as ``s3.endpoint``. Never print them: they may be secret."""
    return {name.lower(): value for name, value in options.items() if name.lower().startswith(SETTING_PREFIXES)}


def _fold_option_names(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _validate_options(options: Mapping[str, str], mode: Mode) -> dict[str, str]:
    """Return the options by canonical name. Raises `InvalidOptionError` for an option that is not for this mode."""
    texts: dict[str, str] = {}
    for name, value in options.items():
        folded = name.lower()
        if folded.startswith(SETTING_PREFIXES):
            continue
        option = _BY_FOLDED_NAME.get(folded)
        if option is None:
            _reject_unknown(name, mode)
        if mode not in option.modes:
            raise InvalidOptionError(
                f"option {option.name} is not supported in {mode}, only in {' and '.join(option.modes)}"
            )
        texts[option.name] = value
    return texts


def _reject_unknown(name: str, mode: Mode) -> NoReturn:
    equivalent = _FOREIGN.get(name.lower())
    if equivalent is not None:
        raise InvalidOptionError(f"option {name} belongs to another connector; use {equivalent}")
    names = [option.name for option in OPTIONS if mode in option.modes]
    nearest_name = find_nearest(name, names) or find_nearest(name, [option.name for option in OPTIONS])
    hint = f"did you mean {nearest_name}?" if nearest_name else f"supported in {mode} are {', '.join(names)}"
    raise InvalidOptionError(f"unknown option {name[:100]!r}; {hint}")


def _check_ranges(options: ReadOptions, texts: Mapping[str, str]) -> None:
    start, end = options.starting_timestamp_ms, options.ending_timestamp_ms
    if start is not None and end is not None and start > end:
        raise InvalidOptionError(
            f"startingTimestamp {texts['startingTimestamp']} is after endingTimestamp {texts['endingTimestamp']}; "
            "exchange them"
        )
    as_of = [name for name in ("asOfLakeSnapshot", "asOfTimestamp") if name in texts]
    bounds = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "readChangeFeed")
    conflicting = [name for name in bounds if name in texts]
    if len(as_of) > 1 or (as_of and conflicting):
        raise InvalidOptionError(
            f"options {' and '.join([*as_of, *conflicting][:2])} cannot be combined, because 'as of' reads one state; "
            "remove one of them"
        )


def _parse_offsets_option(
    texts: Mapping[str, str], name: str, default: OffsetSpec, words: tuple[str, ...]
) -> OffsetSpec:
    text = texts.get(name)
    if text is None:
        return default
    word = text.strip().lower()
    for spec in (FULL, EARLIEST, LATEST):
        if spec.kind == word and word in words:
            return spec
    expected = f'{", ".join(words)}, or JSON such as {{"0": 120, "1": {LATEST_OFFSET}}}'
    if word in ("full", "earliest", "latest"):
        reject(name, text, expected)
    offset_min = EARLIEST_OFFSET if name == "startingOffsets" else LATEST_OFFSET
    try:
        bounds = json.loads(text, object_pairs_hook=_unique_pairs)
    except ValueError:
        reject(name, text, expected)
    if not isinstance(bounds, dict) or not bounds:
        reject(name, text, expected)
    offsets: dict[int, int] = {}
    for bucket, offset in bounds.items():
        if type(offset) is not int or not offset_min <= offset < 2**63:
            reject(name, text, f"{expected}, with whole offsets of at least {offset_min}")
        offsets[parse_int(f"a bucket in {name}", bucket, minimum=0, maximum=BUCKET_MAX)] = offset
    return OffsetSpec("offsets", offsets)


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("duplicate bucket")
    return mapping


def _parse_timestamp_option(texts: Mapping[str, str], name: str, *, round_up: bool) -> int | None:
    text = texts.get(name)
    return None if text is None else parse_timestamp_ms(name, text, round_up=round_up)


def _parse_int_option(texts: Mapping[str, str], name: str, *, minimum: int) -> int | None:
    text = texts.get(name)
    return None if text is None else parse_int(name, text, minimum=minimum)


def _parse_bool_option(texts: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = texts.get(name)
    return default if text is None else parse_bool(name, text)


def _parse_keyword_option(texts: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return the option's value, which must be one of ``words`` in any case. The first word is the default."""
    text = texts.get(name, words[0])
    matches = [word for word in words if word.lower() == text.strip().lower()]
    return matches[0] if matches else reject(name, text, " or ".join(words))


def _parse_id_option(texts: Mapping[str, str], name: str) -> str | None:
    text = texts.get(name)
    if text is not None and not (1 <= len(text) <= 256 and text.isprintable() and text.strip() == text):
        reject(name, text, "1 to 256 printable characters without leading or trailing blanks")
    if text is not None and name == "txnAppId":
        check_app_id(text)
    return text
