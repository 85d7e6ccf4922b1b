"""Files as rows: Parquet, Arrow, CSV and JSON Lines, read in batches of bounded size."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from streamhouse_spark.core.values import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.write.arrow_input import ArrowLimits, require_readable, require_sound, sound_batches
from streamhouse_spark.write.variant_text import csv_types, json_batches, parsed_variants, variant_columns

FORMATS: Final = ("parquet", "arrow", "csv", "json")
STDIN: Final = "-"
_FORMAT_OF_SUFFIX: Final = {
    ".parquet": "parquet", ".pq": "parquet",
    ".arrow": "arrow", ".arrows": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".csv": "csv", ".tsv": "csv",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
}  # fmt: skip
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4")
_PARQUET_BATCH_ROWS: Final = 65_536
_TEXT_BLOCK_BYTES: Final = 8 << 20
_PIECE_BYTES_MAX: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class RowFile:
    """An open file: its schema, its number of rows if known, and its rows, to be read once."""

    schema: pa.Schema
    num_rows: int | None
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules for turning texts of CSV and JSON into values."""

    schema: pa.Schema | None = None
    """The table's columns; other columns, and all without a schema, get the type that their values look like."""
    null_texts: Sequence[str] = ()
    """Texts of CSV fields that mean null, besides the empty one."""


def file_format(path: str, given: str | None) -> str:
    """Return the format that ``given`` or the file's name tells. Raises `InvalidOptionError` if neither does."""
    if given is not None:
        return given
    suffixes = [s.lower() for s in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    found = _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InvalidOptionError(
            f"the format of {'standard input' if path == STDIN else path} cannot be told from its name; "
            f"say --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        )
    return found


def open_rows(path: str, format_: str, rules: TextRules, stack: ExitStack, stdin: IO[bytes]) -> RowFile:
    """Open a file, or ``stdin`` for ``-``; ``stack`` closes it.

    Raises `InvalidOptionError` if the file cannot be read, `SchemaMismatchError` if its content cannot be, both here
    and while its batches are read.
    """
    try:
        match format_:
            case "parquet":
                found = _open_parquet(_seekable(path, stack, stdin))
            case "arrow":
                found = _open_arrow(_seekable(path, stack, stdin))
            case "csv":
                found = _open_csv(path, _stream(path, stack, stdin), rules)
            case _:
                found = _open_json(_stream(path, stack, stdin), rules)
        require_readable(found.schema)
        return _guarded(path, found)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error


def rows_of_body(body: bytes, format_: str, rules: TextRules, limits: ArrowLimits | None = None) -> pa.Table:
    """Read the rows in the body of a request: an Arrow stream or file, CSV or JSON Lines.

    Raises `SchemaMismatchError` for bytes that are no such rows, and for Arrow beyond the limits.
    """
    source = pa.BufferReader(body)
    try:
        match format_:
            case "arrow":
                found = _open_arrow(source, limits)
            case "csv":
                found = _open_csv("", source, rules)
            case _:
                found = _open_json(source, rules)
        require_readable(found.schema)
        return pa.Table.from_batches(list(found.batches), found.schema)
    except (pa.ArrowException, UnicodeError, OSError) as error:  # Arrow names some damage of a stream an OSError
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise SchemaMismatchError(
            f"the body holds no rows of the table as {format_}: {first_line}; check Content-Type and the columns' types"
        ) from error


def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join the batches to tables of at most about `_PIECE_BYTES_MAX`."""
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= _PIECE_BYTES_MAX:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _guarded(path: str, opened: RowFile) -> RowFile:
    def batches() -> Iterator[pa.RecordBatch]:
        try:
            yield from opened.batches
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise _unreadable(path, error) from error

    return RowFile(opened.schema, opened.num_rows, batches())


def _unreadable(path: str, error: Exception) -> Exception:
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    name = "standard input" if path == STDIN else path
    if isinstance(error, FileNotFoundError):
        return InvalidOptionError(f"there is no file {name}; check the path")
    if isinstance(error, OSError) and not isinstance(error, pa.ArrowException):
        return InvalidOptionError(f"{name} cannot be read: {first_line}")
    return SchemaMismatchError(
        f"{name}: {first_line}; check --format and the column's type (--null TEXT names texts that mean null in CSV)"
    )


def _stream(path: str, stack: ExitStack, stdin: IO[bytes]) -> Any:
    if path == STDIN:
        return stdin
    return stack.enter_context(pa.input_stream(path, compression="detect"))


def _seekable(path: str, stack: ExitStack, stdin: IO[bytes]) -> Any:
    if path != STDIN:
        return stack.enter_context(pa.memory_map(path))
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    shutil.copyfileobj(stdin, file)
    file.seek(0)
    return stack.enter_context(pa.PythonFile(file, "r"))


def _open_parquet(source: Any) -> RowFile:
    file = pq.ParquetFile(source)
    return RowFile(file.schema_arrow, file.metadata.num_rows, file.iter_batches(batch_size=_PARQUET_BATCH_ROWS))


def _open_arrow(source: Any, limits: ArrowLimits | None = None) -> RowFile:
    require_sound(source, limits)
    source.seek(0)
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        reader = pa.ipc.open_stream(source)
        return RowFile(reader.schema, None, sound_batches(reader))
    batches = sound_batches(file.get_batch(i) for i in range(file.num_record_batches))
    return RowFile(file.schema, None, batches)


def _open_csv(path: str, source: Any, rules: TextRules) -> RowFile:
    delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
    types = csv_types(rules.schema) if rules.schema is not None else None
    variants = variant_columns(rules.schema)
    reader = pa.csv.open_csv(
        source,
        read_options=pa.csv.ReadOptions(block_size=_TEXT_BLOCK_BYTES),
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(
            column_types=types,
            null_values=["", *rules.null_texts],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    if not variants:
        return RowFile(reader.schema, None, iter(reader))
    schema = parsed_variants(pa.RecordBatch.from_pylist([], reader.schema), variants).schema
    return RowFile(schema, None, (parsed_variants(batch, variants) for batch in reader))


def _open_json(source: Any, rules: TextRules) -> RowFile:
    batches = _json_batches(source, rules)
    first = next(batches, None)
    if first is None:
        return RowFile(pa.schema([]), 0, iter(()))

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return RowFile(first.schema, None, all_batches())


def _json_batches(source: Any, rules: TextRules) -> Iterator[pa.RecordBatch]:
    """Read JSON Lines in blocks that end with a line. The types of columns without a rule are inferred per block."""
    wanted = rules.schema
    if wanted is not None:  # Arrow reads days of JSON as numbers, and nobody writes them so
        wanted = pa.schema([f.with_type(pa.string()) if pa.types.is_date(f.type) else f for f in wanted])
    variants = variant_columns(wanted)
    if wanted is not None:
        wanted = pa.schema([field for field in wanted if field.name.casefold() not in variants])
    options = pa.json.ParseOptions(explicit_schema=wanted, newlines_in_values=False)

    def parsed(lines: bytes) -> Iterator[pa.RecordBatch]:
        return _with_dates(_parsed_json(lines, options), rules.schema)

    def read(lines: bytes) -> Iterator[pa.RecordBatch]:
        return json_batches(lines, variants, parsed) if variants else parsed(lines)

    rest = b""
    while block := source.read(_TEXT_BLOCK_BYTES):
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline and lines.strip():
            yield from read(lines)
    if rest.strip():
        yield from read(rest)


def _with_dates(batches: Iterator[pa.RecordBatch], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    days = {field.name: field.with_nullable(True) for field in schema or () if pa.types.is_date(field.type)}
    for batch in batches:
        yield batch.cast(pa.schema([days.get(field.name, field) for field in batch.schema]))


def _parsed_json(lines: bytes, options: pa.json.ParseOptions) -> Iterator[pa.RecordBatch]:
    block = pa.json.ReadOptions(block_size=max(len(lines) + 1, 1024))
    yield from pa.json.read_json(io.BytesIO(lines), read_options=block, parse_options=options).to_batches()
