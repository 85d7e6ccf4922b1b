"""Errors for damaged metadata of lake tables: invalid values, and the damaged file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa

from streamhouse_spark.errors import CorruptDataError, SnapshotExpiredError, StreamhouseError

_WRONG_VALUES: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    StopIteration,
    RecursionError,
    EOFError,
    struct.error,
    zlib.error,
    pa.ArrowException,
)
_GUARDED: Final = frozenset(
    {
        "newest",
        "find_durable",
        "head",
        "is_replaced",
        "snapshot",
        "snapshot_by_name",
        "snapshot_as_of",
        "live_files",
        "plan_read",
        "scan_files",
        "metadata_table",
        "require_clonable",
        "clone",
        "relocation",
        "create_or_evolve",
        "delete_rows",
        "rewrite_manifests",
        "prune_metadata",
        "_write_context",
        "_commit",
        "_drop_partitions",
        "_compact",
        "cluster",
        "_expire",
        "_remove_orphans",
    }
)
"""Methods of a lake table that read its metadata."""

P = ParamSpec("P")
R = TypeVar("R")


class InconsistentMetadataError(ValueError):
    """The files of a round do not match its offsets: a bug of the writer, not damage of the lake."""


def guard_metadata_errors(lake_table: type) -> None:
    """Make the methods of a lake table class raise `CorruptDataError` for invalid values in metadata."""
    for name, method in list(vars(lake_table).items()):
        if name in _GUARDED and not getattr(method, "__isabstractmethod__", False):
            setattr(lake_table, name, _with_error_mapping(method))


def _with_error_mapping(method: Callable[P, R]) -> Callable[P, R]:
    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except (StreamhouseError, InconsistentMetadataError):
            raise
        except _WRONG_VALUES as error:
            raise _damaged_error(args[0], error) from error

    return call


def _damaged_error(lake_table: Any, error: Exception) -> CorruptDataError:
    text = " ".join(str(error).split())[:200]
    return CorruptDataError(
        f"lake table {lake_table.location}: its metadata has invalid values ({type(error).__name__}: {text}); "
        "restore the metadata, or rebuild the lake from the log (streamhouse retier)"
    )


def absent_snapshot_error(location: str, snapshot_id: int, retained: Sequence[int]) -> SnapshotExpiredError:
    """Return the error for a snapshot that a lake table does not have. ``retained`` are its snapshots, oldest first."""
    latest = ", ".join(map(str, retained[-5:])) or "none"
    return SnapshotExpiredError(
        f"lake table {location} has no snapshot {snapshot_id}: it expired or never existed; choose a retained snapshot "
        f"(latest: {latest})"
    )


@contextmanager
def translate_missing_file_errors(location: str) -> Iterator[None]:
    """Run reads of a snapshot's metadata. Raises `SnapshotExpiredError` for a missing file."""
    try:
        yield
    except FileNotFoundError as error:
        raise SnapshotExpiredError(
            f"lake table {location}: metadata of the snapshot is missing, because it expired during the read; retry "
            f"the query. If the error persists, rebuild the lake from the log (streamhouse retier) ({error})"
        ) from error


@contextmanager
def translate_damage_errors(
    location: str, damage: tuple[type[Exception], ...], location_of: Callable[[object], str | None], otherwise: str
) -> Iterator[None]:
    """Run a library's reads of metadata files. Raises `CorruptDataError` for its errors on damaged bytes.

    ``location_of`` and ``otherwise`` are as in `find_damaged_file`.
    """
    try:
        yield
    except (StreamhouseError, FileNotFoundError):
        raise
    except damage as error:
        file = find_damaged_file(error, location_of, otherwise)
        raise CorruptDataError(
            f"lake table {location}: cannot read {file} ({type(error).__name__}: {error}); restore it, or rebuild "
            "the lake from the log (streamhouse retier)"
        ) from error


def find_damaged_file(error: Exception, location_of: Callable[[object], str | None], otherwise: str) -> str:
    """Return the file that was being read when the error occurred, or ``otherwise``.

    The errors of the libraries do not name the file, and may come from their threads. But the frames of the traceback
    hold the value that was read: ``location_of`` returns its location, or None for other values. The innermost wins.
    """
    location, traceback = otherwise, error.__traceback__
    while traceback is not None:
        for value in traceback.tb_frame.f_locals.values():
            location = location_of(value) or location
        traceback = traceback.tb_next
    return location
