"""Readers of row files: Parquet, Arrow, CSV and JSON Lines, in batches of bounded size."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import InvalidOptionError, SchemaMismatchError
from streamhouse_spark.write.csv_rows import read_csv
from streamhouse_spark.write.json_lines import JsonReader, can_be_parsed_at_once
from streamhouse_spark.write.untrusted_arrow import IpcLimits, require_readable, require_sound, sound_batches

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
    """An open file: its schema, its number of rows if known, and its batches, to be read once."""

    schema: pa.Schema
    num_rows: int | None
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """Rules for converting texts of CSV and JSON to values."""

    schema: pa.Schema | None = None
    """The table's columns. Other columns, and all columns without a schema, get inferred types."""
    null_texts: Sequence[str] = ()
    """Texts of CSV fields that mean null, in addition to the empty text."""
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Values of columns that a row lacks, else null. A column that all rows lack is omitted."""


def file_format(path: str, explicit: str | None) -> str:
    """Return the explicit format, or that of the file name's suffix. Raises `InvalidOptionError` if
    there is neither.
    """
    if explicit is not None:
        return explicit
    suffixes = [s.lower() for s in Path(path).suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    by_suffix = _FORMAT_OF_SUFFIX.get(suffixes[-1]) if suffixes else None
    if by_suffix is None:
        raise InvalidOptionError(
            f"the format of {'standard input' if path == STDIN else path} cannot be told from its name; "
            f"say --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}",
        )
    return by_suffix


def open_rows(path: str, format_: str, rules: CsvOptions, stack: ExitStack, stdin: IO[bytes]) -> RowFile:
    """Open a file, or ``stdin`` for ``-``; ``stack`` closes it.

    Raises `InvalidOptionError` if the file cannot be read and `SchemaMismatchError` if its content is invalid, here and
    while its batches are read.
    """
    try:
        match format_:
            case "parquet":
                opened = _open_parquet(_seekable(path, stack, stdin))
            case "arrow":
                opened = _open_arrow(_seekable(path, stack, stdin))
            case "csv":
                opened = _open_csv(path, _stream(path, stack, stdin), rules)
            case _:
                opened = _open_json(_stream(path, stack, stdin), rules)
        require_readable(opened.schema)
        return _with_error_mapping(path, opened)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error


def read_body(body: bytes, format_: str, rules: CsvOptions, limits: IpcLimits | None = None) -> pa.Table:
    """Read the rows of a request body: an Arrow stream or file, CSV or JSON Lines.

    Raises `SchemaMismatchError` for invalid bytes, and for Arrow data beyond the limits.
    """
    source = pa.BufferReader(body)
    try:
        match format_:
            case "arrow":
                opened = _open_arrow(source, limits)
            case "csv":
                opened = _open_csv("", source, rules)
            case _ if rules.schema is not None:
                return JsonReader(rules.schema, rules.defaults).read(body)
            case _:
                opened = _open_json(source, rules)
        require_readable(opened.schema)
        return pa.Table.from_batches(list(opened.batches), opened.schema)
    except (pa.ArrowException, UnicodeError, OSError) as error:  # Arrow raises OSError for some damaged streams
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise SchemaMismatchError(
            f"the body holds no rows of the table as {format_}: {first_line}; check Content-Type and the columns' types"
        ) from error


def iter_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join consecutive batches with equal columns to tables of about `_PIECE_BYTES_MAX` at most."""
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        if pending and batch.schema != pending[-1].schema:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= _PIECE_BYTES_MAX:
            yield pa.Table.from_batches(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


def _with_error_mapping(path: str, opened: RowFile) -> RowFile:
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


def _open_arrow(source: Any, limits: IpcLimits | None = None) -> RowFile:
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


def _open_csv(path: str, source: Any, rules: CsvOptions) -> RowFile:
    delimiter = "\t" if ".tsv" in Path(path).suffixes else ","
    schema, batches = read_csv(source, rules.schema, delimiter=delimiter, null_texts=rules.null_texts)
    return RowFile(schema, None, batches)


def _open_json(source: Any, rules: CsvOptions) -> RowFile:
    batches = _json_batches(source, rules)
    first = next(batches, None)
    if first is None:
        return RowFile(pa.schema([]), 0, iter(()))

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    return RowFile(first.schema, None, all_batches())


def _json_batches(source: Any, rules: CsvOptions) -> Iterator[pa.RecordBatch]:
    """Read JSON Lines in blocks that end with a line. Without a schema, types are inferred per block."""
    reader = JsonReader(rules.schema, rules.defaults) if rules.schema is not None else None
    rest = b""
    while block := source.read(_TEXT_BLOCK_BYTES):
        lines, newline, rest = (rest + block).rpartition(b"\n")
        if newline and lines.strip():
            yield from _read_lines(lines, reader)
    if rest.strip():
        yield from _read_lines(rest, reader)


def _read_lines(lines: bytes, reader: JsonReader | None) -> Iterator[pa.RecordBatch]:
    if reader is not None:
        rows = reader.read(lines)
    elif not can_be_parsed_at_once(lines):
        raise SchemaMismatchError("the rows are not JSON objects; send one per line")
    else:
        block = pa.json.ReadOptions(block_size=max(len(lines) + 1, 1024))
        rows = pa.json.read_json(io.BytesIO(lines), read_options=block)
    yield from rows.to_batches()
