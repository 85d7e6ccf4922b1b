"""The layout of a warehouse: names of tables and databases, keys of their objects, and locations.

A *location* is an absolute path of this machine or a URL, as in lake metadata and ``streamhouse.json``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from streamhouse_spark.core.types import BRANCH_PREFIX, TableName, TablePath
from streamhouse_spark.errors import InvalidNameError, quote

WAREHOUSE_KEY = "streamhouse.json"
RELOCATION_KEY = "relocation.json"
TABLES_PREFIX = "tables/"
LAKE_PREFIX = "lake/"
VIRTUAL_PREFIX = f"{LAKE_PREFIX}.virtual/"
"""Folder of virtual tables, which extend lake tables by rows of the hot log. It is not a valid database name."""
LOCATION_NAME = "location.json"
OWNER_NAME = "owner.json"
DEFAULT_DATABASE = "default"
RESERVED_DATABASES = frozenset({"tables", "lake", "streamhouse"})
NAME_CHARS_MAX = 128

_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_BRANCH = re.compile(rf"{BRANCH_PREFIX}[a-z_][a-z0-9_]{{0,{NAME_CHARS_MAX - 1}}}\Z")
_UUID = re.compile(r"[0-9a-f]{32}\Z")
_PLACED = "810c"
_PLACED_AT = 12
_LOG_FOLDER = re.compile(r"/tables/[0-9a-f]{32}/")
_NAME_KEY = re.compile(r"([a-z_][a-z0-9_]*)/([a-z_][a-z0-9_]*)/names/([0-9]{8,})\.json")
_NUMBER = re.compile(r"([0-9]{20})(?:\.json)?")
_FILE = re.compile(r"file:/+(?=[^/])", re.IGNORECASE)
_S3 = re.compile(r"s3[an]?://", re.IGNORECASE)
_AZURE = re.compile(r"abfs://", re.IGNORECASE)
NAME_PROPERTY: Final = "openlineage.dataset.name"
NAMESPACE_PROPERTY: Final = "openlineage.dataset.namespace"
PROPERTY_PREFIX: Final = "openlineage."


def parse_database(text: object) -> str:
    """Return the database name in lower case. Raises `InvalidNameError`."""
    name = _validate_name(text, "database")
    if name in RESERVED_DATABASES:
        raise InvalidNameError(f"database name {text!r} is reserved for a folder of the warehouse; choose another name")
    return name


def parse_table_name(text: object) -> TableName:
    """Parse ``[<database>.]<table>[$branch_<name>][$<suffix>]``; the default database is ``default``.

    Raises `InvalidNameError`.
    """
    if not isinstance(text, str) or not text:
        raise InvalidNameError(f"table name {_quote(text)}: expected a non-empty string such as 'sales.orders'")
    base, dollar, suffix = text.partition("$")
    parts = base.split(".")
    if len(parts) > 2:
        raise InvalidNameError(
            f"table name {_quote(text)}: found {len(parts)} parts, expected '<database>.<table>' or '<table>'"
        )
    database = parse_database(parts[0]) if len(parts) == 2 else DEFAULT_DATABASE
    path = TablePath(database, _validate_name(parts[-1], "table"))
    if dollar and not suffix:
        raise InvalidNameError(f"table name {_quote(text)} ends with '$': add a suffix, for example {path}$lake")
    first, second_dollar, rest = suffix.lower().partition("$")
    if not _BRANCH.match(first):
        return TableName(path, suffix.lower() if dollar else None)
    if second_dollar and not rest:
        raise InvalidNameError(f"table name {_quote(text)} ends with '$': add a suffix, for example {path}${first}")
    return TableName(path.of_branch(first.removeprefix(BRANCH_PREFIX)), rest or None)


def parse_branch(text: object) -> str:
    """Return the branch name in lower case. Raises `InvalidNameError`."""
    name = _validate_name(text, "branch")
    if name == "main":
        raise InvalidNameError("branch name 'main' is reserved for the table itself; choose another name")
    return name


def _validate_name(text: object, kind: str) -> str:
    # Some non-ASCII letters have an ASCII lower case.
    name = text.lower() if isinstance(text, str) and text.isascii() else ""
    if not _NAME.match(name) or len(name) > NAME_CHARS_MAX:
        raise InvalidNameError(
            f"{kind} name {_quote(text)}: expected at most {NAME_CHARS_MAX} letters (a-z), digits and underscores, "
            "without a leading digit; choose such a name"
        )
    return name


def _quote(text: object) -> str:
    if not isinstance(text, str):
        return quote(text)
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else f"{quoted[:60]}… ({len(text)} characters)"


def database_key(database: str, number: int = 1) -> str:
    return f"{database}/database.json" if number == 1 else f"{database}/database-{number:08d}.json"


def is_table_name(name: str) -> bool:
    """Return whether a folder of a database may be that of a table."""
    return _NAME.match(name) is not None


def names_prefix(path: TablePath) -> str:
    return f"{path.database}/{path.table}/names/"


def name_key(path: TablePath, number: int) -> str:
    return f"{names_prefix(path)}{number:08d}.json"


def parse_name_key(key: str) -> tuple[TablePath, int] | None:
    """Return the name and number of a pointer's key; None for any other key."""
    match = _NAME_KEY.fullmatch(key)
    return (TablePath(match[1], match[2]), int(match[3])) if match else None


def table_prefix(table_uuid: str) -> str:
    if not _UUID.match(table_uuid):
        raise InvalidNameError(f"table uuid {_quote(table_uuid)}: expected 32 hexadecimal digits")
    return f"{TABLES_PREFIX}{table_uuid}/"


def make_external_log_uuid(uuid: str) -> str:
    """Mark a new UUID as that of a table whose log is in another store.

    The mark is version 8 of RFC 9562. The UUID alone shows whether the location of the log must be looked up.
    """
    return uuid[:_PLACED_AT] + _PLACED + uuid[_PLACED_AT + len(_PLACED) :]


def may_have_external_log(table_uuid: str) -> bool:
    """Return whether the log of a table may be in another store. Logs of other tables never are."""
    return table_uuid.startswith(_PLACED, _PLACED_AT)


def parse_external_log_uuid(key: str) -> str | None:
    """Return the UUID of the table whose log contains the object, if the log may be in another store; else None."""
    if not key.startswith(TABLES_PREFIX) or not key.startswith(_PLACED, len(TABLES_PREFIX) + _PLACED_AT):
        return None
    uuid, slash, name = key[len(TABLES_PREFIX) :].partition("/")
    return uuid if slash and name != LOCATION_NAME and _UUID.match(uuid) else None


def log_location_key(table_uuid: str) -> str:
    """Return the key of the object in the warehouse with the location of the table's log."""
    return f"{table_prefix(table_uuid)}{LOCATION_NAME}"


def log_owner_key(table_uuid: str) -> str:
    """Return the key of the object next to a log in another store that names the log's warehouse."""
    return f"{table_prefix(table_uuid)}{OWNER_NAME}"


def is_in_log(location: str) -> bool:
    """Return whether a path or URL is the folder of a table's log, or inside one."""
    return _LOG_FOLDER.search(f"{location}/") is not None


def commits_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}commits/"


def commit_key(table_uuid: str, number: int) -> str:
    return f"{commits_prefix(table_uuid)}{number:020d}.json"


def checkpoints_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}checkpoints/"


def checkpoint_key(table_uuid: str, number: int) -> str:
    return f"{checkpoints_prefix(table_uuid)}{number:020d}"


def checkpoint_hint_key(table_uuid: str) -> str:
    return f"{checkpoints_prefix(table_uuid)}hint"


def watermarks_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}floors/"


def watermark_key(table_uuid: str, number: int) -> str:
    return f"{watermarks_prefix(table_uuid)}{number:020d}"


def segments_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}segments/"


def segment_key(table_uuid: str, segment_uuid: str) -> str:
    return f"{segments_prefix(table_uuid)}{segment_uuid}.arrow"


def manifests_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}manifests/"


def manifest_key(table_uuid: str, manifest_uuid: str) -> str:
    return f"{manifests_prefix(table_uuid)}{manifest_uuid}.json"


def tags_prefix(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}tags/"


def tag_key(table_uuid: str, tag_uuid: str) -> str:
    return f"{tags_prefix(table_uuid)}{tag_uuid}"


def parse_number(key: str) -> int | None:
    """Return the number at the end of a commit, checkpoint or watermark key; None for any other key."""
    match = _NUMBER.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match else None


def parse_numbers(keys: Iterable[str]) -> list[int]:
    """Return the ascending numbers of those keys that have one."""
    return sorted(number for number in map(parse_number, keys) if number is not None)


def tiering_claim_key(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}tiering-claim.json"


def refresh_claim_key(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}refresh-claim.json"


def tiering_failures_key(table_uuid: str) -> str:
    return f"{table_prefix(table_uuid)}tiering-failures.json"


def lake_location(path: TablePath, table_uuid: str, *, has_conflict: bool, lake_format: str = "iceberg") -> str:
    """Return the default location of a table's lake table; with ``has_conflict`` it includes a part of the UUID.

    Paimon's file system catalog expects databases in folders with the suffix ``.db``.
    """
    name = f"{path.table}-{table_uuid[:8]}" if has_conflict else path.table
    return _lake_key(path, name, lake_format)


def rebuilt_lake_location(path: TablePath, table_uuid: str, number: int, *, lake_format: str) -> str:
    """Return the location of the lake table that replaces the former ``number`` lake tables of a table."""
    return _lake_key(path, f"{path.table}-{table_uuid[:8]}-{number}", lake_format)


def virtual_location(table_uuid: str, epoch: int, name: str) -> str:
    """Return the location of a virtual table. Its folder may be deleted a grace period after the ``epoch``."""
    return f"{VIRTUAL_PREFIX}{table_uuid}-{epoch}-{name}"


def virtual_epoch(name: str) -> int | None:
    """Return the epoch in a virtual table's folder name; None for any other name."""
    parts = name.split("-")
    is_virtual = len(parts) >= 3 and _UUID.match(parts[0]) is not None and parts[1].isascii() and parts[1].isdigit()
    return int(parts[1]) if is_virtual else None


def _lake_key(path: TablePath, name: str, lake_format: str) -> str:
    database = f"{path.database}.db" if lake_format == "paimon" else path.database
    return f"{LAKE_PREFIX}{database}/{name}"


def canonical_location(location: str) -> str:
    """Return the canonical spelling of a location: local files as a path, S3 as ``s3://``, Azure as ``abfss://``."""
    if location.startswith("/"):
        return location
    return _AZURE.sub("abfss://", _S3.sub("s3://", _FILE.sub("/", location, count=1), count=1), count=1)


def canonical_root(url: str) -> str:
    """Return the canonical spelling of a warehouse root, without a trailing slash."""
    return canonical_location(url).rstrip("/")


def rebase_uri(location: str, recorded_root: str, opened_root: str) -> str:
    """Move a location from the recorded root to the opened root. Return other locations unchanged.

    Both roots are results of `canonical_root`.
    """
    plain_uri = canonical_location(location)
    return opened_root + plain_uri[len(recorded_root) :] if _is_below(plain_uri, recorded_root) else location


def _is_below(plain_uri: str, root: str) -> bool:
    return plain_uri == root or plain_uri.startswith(f"{root}/")


def find_recorded_root(location: str, key: str) -> str | None:
    """Return the warehouse root for which ``key`` has this location; None if the location ends with another key."""
    plain_uri = canonical_root(location)
    return plain_uri.removesuffix(f"/{key}") if plain_uri.endswith(f"/{key}") else None


def is_same_place(first: str, second: str) -> bool:
    """Return whether two roots are equal.

    The file system compares local directories, so symbolic links and mounts of a directory are equal to it.
    """
    first, second = canonical_root(first), canonical_root(second)
    return first == second or (first.startswith("/") and second.startswith("/") and _is_same_directory(first, second))


def find_same_parent_directory(path: str, root: str) -> str | None:
    """Return the nearest parent directory of a local path that is the directory ``root``, or None."""
    return next((str(folder) for folder in Path(path).parents[:-1] if _is_same_directory(str(folder), root)), None)


def _is_same_directory(first: str, second: str) -> bool:
    try:
        return Path(first).samefile(second)
    except OSError:
        return False


def is_within(inner: str, outer: str) -> bool:
    """Return whether the root ``inner`` equals ``outer`` or lies below it. Follows symbolic links of directories."""
    inner, outer = canonical_root(inner), canonical_root(outer)
    if inner.startswith("/") and outer.startswith("/"):
        inner, outer = os.path.realpath(inner), os.path.realpath(outer)
    return _is_below(inner, outer)


class DatasetName(NamedTuple):
    namespace: str
    name: str


def dataset_name(warehouse_url: str, within: str) -> DatasetName:
    """Return the name of a table, such as ``sales.orders``, or of a folder in a warehouse."""
    url = warehouse_url.rstrip("/")
    scheme, separator, rest = url.partition("://")
    if not separator:
        return DatasetName("file", f"{url}/{within}")
    authority, _, path = rest.partition("/")
    return DatasetName(f"{scheme}://{authority}", f"{path}/{within}" if path else within)
