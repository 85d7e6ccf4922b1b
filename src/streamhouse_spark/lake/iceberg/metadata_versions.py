"""Metadata versions of a table in the file catalog: their keys, and the search for the latest version.

The search starts at the hint and needs two reads per doubling of the distance, but no listing. The absence of N+1
proves that N is the latest only if the low watermark is at most N. The watermark is read afterwards, or less than a
minute before, because versions are deleted only a day after a watermark above them was stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from typing import Final

from streamhouse_spark.core.clock import World
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.errors import ObjectNotFoundError, StorageError
from streamhouse_spark.lake.metadata_cache import LruCache, RoundCache
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.prefetch import Prefetch, SupportsBatchReads, call_both
from streamhouse_spark.storage.sequence_search import find_last_result

DROPPED: Final = 10**20 - 1
FLOOR_CHECK_AFTER_MS: Final = 60_000
_STEPS_AHEAD: Final = 5
"""Number of versions after a known one that are requested before the hint is followed."""
_VERSION_FILE = re.compile(r"v(\d+)\.metadata\.json\Z")


@dataclass(frozen=True, slots=True)
class LatestVersion:
    number: int
    data: bytes
    has_stale_hint: bool
    """Whether the hint may contain an older version."""
    checked_ms: int = 0
    """Boot time at which it was requested."""


@dataclass(frozen=True, slots=True)
class _CachedVersion:
    """A version that this process has read, which replaces the hint on a remote store."""

    number: int
    is_hinted: bool
    """Whether the hint has contained this or a later version."""


round_cache: RoundCache[LatestVersion] = RoundCache()
_known_versions: LruCache[tuple[str, str], _CachedVersion] = LruCache(1024)
"""The latest version that this process has read, by table."""


def find_latest_version(
    storage: Storage, world: World, key: str, *, from_number: int | None = None
) -> LatestVersion | None:
    """Return the latest version of a table, even if the hint is wrong, or None without a table.

    ``from_number`` is a known version. With it, the hint is not read.
    """
    prefetched = round_cache.get(storage, key)
    if prefetched is not None and (
        from_number is None or (from_number == prefetched.number and isinstance(storage, SupportsBatchReads))
    ):
        return prefetched
    started_ms = world.clock.boot_ms()
    if from_number is not None:
        cached: _CachedVersion | None = _CachedVersion(from_number, is_hinted=True)
    elif (cached := _known_versions.get((storage.url, key))) is None:
        cached = _read_hinted(storage, key)
    start = cached.number if cached is not None else 1
    while True:
        number_and_data, floor = _find_version_and_watermark(storage, world, key, start)
        if floor == DROPPED or (number_and_data is None and start == max(floor, 1)):
            return None
        if number_and_data is not None and floor <= number_and_data[0]:
            break
        start = max(floor, 1)
        if _known_versions.pop((storage.url, key)) and (cached := _read_hinted(storage, key)) is not None:
            start = max(start, cached.number)
    is_hinted = cached is not None and cached.is_hinted and cached.number == number_and_data[0]
    if from_number is None:
        _note_version(storage, key, _CachedVersion(number_and_data[0], is_hinted))
    newest = LatestVersion(*number_and_data, from_number is None and not is_hinted, started_ms)
    if from_number is None:
        round_cache.put(storage, key, newest)
    return newest


def _note_version(storage: Storage, key: str, version: _CachedVersion) -> None:
    if isinstance(storage, SupportsBatchReads):  # reading the hint is cheap on a local store
        _known_versions.put((storage.url, key), version)


def _read_hinted(storage: Storage, key: str) -> _CachedVersion | None:
    number = parse_version_hint(storage, key)
    return None if number is None else _CachedVersion(number, is_hinted=True)


def parse_version_hint(storage: Storage, key: str) -> int | None:
    """Return the number in the hint, or None without a hint."""
    try:
        number = int(storage.read(hint_key(key)))
    except (StorageError, ValueError):
        return None
    return number if number > 0 else None


def put_hint(storage: Storage, key: str, number: int) -> None:
    """Point the hint to a version."""
    storage.put(hint_key(key), str(number).encode())
    _note_version(storage, key, _CachedVersion(number, is_hinted=True))


def repair_hint(storage: Storage, key: str, number: int) -> None:
    """Point the hint to a version, unless it has that or a later one."""
    if (parse_version_hint(storage, key) or 0) < number:
        put_hint(storage, key, number)
    else:
        _note_version(storage, key, _CachedVersion(number, is_hinted=True))


def find_low_watermark(storage: Storage, key: str) -> int:
    """Return the low watermark, below which all versions are void, or 0."""
    return max((int(name) for name in storage.list_names(floors_prefix(key)) if name.isdigit()), default=0)


def _find_version_and_watermark(
    storage: Storage, world: World, key: str, start: int
) -> tuple[tuple[int, bytes] | None, int]:
    """Return version ``start`` or its latest successor, or None if ``start`` is absent, and the low watermark.

    Versions are deleted oldest first, so there are no gaps. On a store with concurrent requests, the watermark is read
    together with the versions.
    """
    prefetch = Prefetch(storage)
    if not prefetch.is_useful:
        return _find_newest_from(prefetch, key, start), find_low_watermark(storage, key)

    started_ms = world.clock.boot_ms()
    first = [version_key(key, start + step) for step in range(2)]
    floor, _ = call_both(storage, partial(find_low_watermark, storage, key), partial(prefetch.expect, first))
    latest = _find_newest_from(prefetch, key, _skip_to_hint(prefetch, key, start))
    if world.clock.boot_ms() - started_ms > FLOOR_CHECK_AFTER_MS:
        floor = find_low_watermark(storage, key)
    return latest, floor


def _skip_to_hint(prefetch: Prefetch, key: str, start: int) -> int:
    """Return ``start``, or the later version in the hint if it exists. Prefetches the version with its successors."""
    second = version_key(key, start + 1)
    if prefetch.is_known_absent(version_key(key, start)) or prefetch.is_known_absent(second):
        return start
    following = [version_key(key, start + step) for step in range(2, _STEPS_AHEAD)]
    prefetch.expect([hint_key(key), *following])
    hint = (prefetch.peek(hint_key(key)) or b"").strip()
    if not hint.isdigit() or int(hint) < start + _STEPS_AHEAD or prefetch.is_known_absent(following[-1]):
        return start
    prefetch.expect(version_key(key, int(hint) + step) for step in range(2))
    return start if prefetch.is_known_absent(version_key(key, int(hint))) else int(hint)


def _find_newest_from(prefetch: Prefetch, key: str, start: int) -> tuple[int, bytes] | None:
    """Return version ``start`` or its latest successor, or None if ``start`` is absent."""

    def read(number: int) -> tuple[int, bytes] | None:
        try:
            return number, prefetch.read(version_key(key, number))
        except ObjectNotFoundError:
            return None

    data = read(start)
    return None if data is None else find_last_result(read, start, data)


# -- keys -------------------------------------------------------------------------------------------------------------


def version_key(key: str, number: int) -> str:
    return f"{key}/metadata/v{number}.metadata.json"


def hint_key(key: str) -> str:
    return f"{key}/metadata/version-hint.text"


def floors_prefix(key: str) -> str:
    return f"{key}/metadata/floors/"


def floor_key(key: str, number: int) -> str:
    return f"{floors_prefix(key)}{number:020d}"


def version_number(metadata_location: str) -> int | None:
    match = _VERSION_FILE.search(metadata_location)
    return int(match[1]) if match else None


def version_numbers(names: Iterable[str]) -> Iterable[int]:
    return (number for name in names if (number := version_number(name)) is not None)
