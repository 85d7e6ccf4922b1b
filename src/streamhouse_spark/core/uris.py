"""Locations of warehouses: equivalent spellings of a location, and locations in a moved warehouse.

A *location* is an absolute path of this machine or a URL, as in lake metadata and ``streamhouse.json``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_FILE = re.compile(r"file:/+(?=[^/])", re.IGNORECASE)
_S3 = re.compile(r"s3[an]?://", re.IGNORECASE)
_AZURE = re.compile(r"abfs://", re.IGNORECASE)


def plain_location(location: str) -> str:
    """Return the canonical spelling of a location: local files as a path, S3 as ``s3://``, Azure as ``abfss://``."""
    if location.startswith("/"):
        return location
    return _AZURE.sub("abfss://", _S3.sub("s3://", _FILE.sub("/", location, count=1), count=1), count=1)


def plain_root(url: str) -> str:
    """Return the canonical spelling of a warehouse root, without a trailing slash."""
    return plain_location(url).rstrip("/")


def rebase_uri(location: str, recorded_root: str, opened_root: str) -> str:
    """Move a location from the recorded root to the opened root. Return other locations unchanged.

    Both roots are spelled as by `plain_root`.
    """
    plain_uri = plain_location(location)
    return opened_root + plain_uri[len(recorded_root) :] if _is_below(plain_uri, recorded_root) else location


def _is_below(plain_uri: str, root: str) -> bool:
    return plain_uri == root or plain_uri.startswith(f"{root}/")


def find_recorded_root(location: str, key: str) -> str | None:
    """Return the warehouse root in which ``key`` had this location; None if the location has another key."""
    plain_uri = plain_root(location)
    return plain_uri.removesuffix(f"/{key}") if plain_uri.endswith(f"/{key}") else None


def is_same_place(first: str, second: str) -> bool:
    """Return whether two roots are the same.

    The file system compares local directories, so symbolic links and visible mounts count as equal.
    """
    first, second = plain_root(first), plain_root(second)
    return first == second or (first.startswith("/") and second.startswith("/") and _is_same_directory(first, second))


def find_same_parent_directory(path: str, root: str) -> str | None:
    """Return the nearest parent directory of a local path that is ``root`` by another name, or None."""
    return next((str(folder) for folder in Path(path).parents[:-1] if _is_same_directory(str(folder), root)), None)


def _is_same_directory(first: str, second: str) -> bool:
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def is_within(inner: str, outer: str) -> bool:
    """Return whether a root equals another one or lies below it. Symbolic links of local directories are followed."""
    inner, outer = plain_root(inner), plain_root(outer)
    if inner.startswith("/") and outer.startswith("/"):
        inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    return _is_below(inner, outer)
