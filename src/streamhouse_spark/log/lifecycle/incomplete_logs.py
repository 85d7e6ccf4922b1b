"""Logs that were never completed: their creator died between the first record and the checkpoint.

The log of a clone or a branch starts after a version of a table. Its first record is not one that creates a table; the
checkpoint that completes the log comes after it. A creator that died in between, or after the manifest of a first
record, leaves one small object, which no reader takes for a table.
"""

from __future__ import annotations

from streamhouse_spark.config.branch_metadata import BRANCH
from streamhouse_spark.core.paths import commit_key, commits_prefix, manifest_key, parse_numbers, table_prefix
from streamhouse_spark.errors import CorruptDataError, FormatVersionError, ObjectNotFoundError
from streamhouse_spark.log.commits.actions import Action, Rename, SetProperties
from streamhouse_spark.log.commits.record import read_record
from streamhouse_spark.storage.base import Storage


def is_unfinished(storage: Storage, uuid: str, before_ms: int) -> bool:
    """Return whether a log consists only of such a start, last written at ``before_ms`` or earlier.

    False for everything else, such as the rest of a damaged table, which may be restored.
    """
    infos = [info for info in storage.list(table_prefix(uuid)) if not info.key.rpartition("/")[2].startswith(".")]
    if not infos or any(info.modified_ms > before_ms for info in infos):
        return False
    prefix = commits_prefix(uuid)
    numbers = parse_numbers([info.key.removeprefix(prefix) for info in infos if info.key.startswith(prefix)])
    if len(numbers) > 1:
        return False
    keys = {manifest_key(uuid, uuid), *(commit_key(uuid, number) for number in numbers)}
    return {info.key for info in infos} <= keys and all(_begins(storage, uuid, number) for number in numbers)


def _begins(storage: Storage, uuid: str, number: int) -> bool:
    """Return whether a record is the first one of a clone or a branch, and has no rows."""
    try:
        record, _ = read_record(storage, uuid, number)
    except (ObjectNotFoundError, CorruptDataError, FormatVersionError):  # deleted concurrently, or unreadable
        return False
    return number > 1 and len(record.actions) == 1 and all(map(_is_beginning, record.actions))


def _is_beginning(action: Action) -> bool:
    return isinstance(action, Rename) or (isinstance(action, SetProperties) and set(action.changed) == {BRANCH})
