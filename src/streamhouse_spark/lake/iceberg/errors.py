"""Translation of errors of catalog clients: a REST client alone raises dozens of types."""

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
"""Responses of a catalog about the state it found, which callers handle."""


@contextmanager
def catalog_answers(action: str) -> Iterator[None]:
    """Wrap catalog calls that change nothing or are idempotent.

    Raises `StorageError` for an error that is neither a response of the catalog nor one of this package.
    """
    try:
        yield
    except (*_ANSWERS, StreamhouseError):
        raise
    except Exception as error:
        raise StorageError(
            f"the Iceberg catalog failed while {action} ({_first_line(error)}); try again later"
        ) from error


@contextmanager
def commit_answers(action: str) -> Iterator[None]:
    """Wrap commits. Raises `CommitStateUnknownError` for an error that is no response of the catalog: the commit may
    have happened.
    """
    try:
        yield
    except (*_ANSWERS, StreamhouseError):
        raise
    except CommitStateUnknownException as error:
        raise CommitStateUnknownError(f"{action}: {_first_line(error)}; it may have happened, try again") from error
    except Exception as error:
        raise CommitStateUnknownError(
            f"{action}: the Iceberg catalog failed ({_first_line(error)}); it may have happened, try again"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
