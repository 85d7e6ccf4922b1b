"""Whatever a catalog's client raises becomes an error to act on: a REST client alone has dozens of kinds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from streamhouse_spark.errors import CommitStateUnknownError, StorageError, StreamhouseError

_ANSWERS = (CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError)
"""What a catalog says of the state it found: callers know what to do."""


@contextmanager
def catalog_answers(what: str) -> Iterator[None]:
    """Around calls to a catalog that change nothing, or what may safely be done again.

    Raises `StorageError` for what is no answer, and no error of ours.
    """
    try:
        yield
    except (*_ANSWERS, StreamhouseError):
        raise
    except Exception as error:
        raise StorageError(
            f"the Iceberg catalog failed while {what} ({_first_line(error)}); try again later"
        ) from error


@contextmanager
def commit_answers(what: str) -> Iterator[None]:
    """Around commits. Raises `CommitStateUnknownError` for what is no answer: they may have happened."""
    try:
        yield
    except (*_ANSWERS, StreamhouseError):
        raise
    except CommitStateUnknownException as error:
        raise CommitStateUnknownError(f"{what}: {_first_line(error)}; it may have happened, try again") from error
    except Exception as error:
        raise CommitStateUnknownError(
            f"{what}: the Iceberg catalog failed ({_first_line(error)}); it may have happened, try again"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
