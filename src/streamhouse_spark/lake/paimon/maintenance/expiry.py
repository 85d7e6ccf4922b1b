"""Expiry of snapshots of a Paimon table, and deletion of the files that only they needed.

**Commit point** for each snapshot: the deletion of its file, oldest first. So a crash leaves contiguous snapshots, as
every reader of Paimon expects, and orphan files. The files of expired snapshots are deleted after the snapshots, data
first, so that no visible snapshot misses one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby

from pypaimon.snapshot.snapshot import Snapshot

from streamhouse_spark.errors import CorruptDataError, ObjectNotFoundError
from streamhouse_spark.lake.model.values import Claim, ExpireReport, ExpiryRules
from streamhouse_spark.lake.offsets import OFFSETS_PROPERTY
from streamhouse_spark.lake.paimon.file_io import MANIFEST_FOLDER
from streamhouse_spark.lake.paimon.reachable_files import (
    ReachableFiles,
    find_strays,
    list_history,
    list_tag_and_branch_snapshots,
)
from streamhouse_spark.lake.paimon.snapshots import own_time_ms
from streamhouse_spark.lake.paimon.table_binding import PaimonTableBinding
from streamhouse_spark.lake.timestamp_correction import effective_times_ms
from streamhouse_spark.storage.prefetch import delete_all, map_with_store_concurrency


def expire(
    place: PaimonTableBinding,
    rules: Sequence[ExpiryRules],
    *,
    dry_run: bool,
    tagged: Collection[int] = (),
    claim: Claim | None = None,
) -> ExpireReport:
    """Expire snapshots as `LakeTable.expire` does, except those that tags, branches and consumers of any engine need.
    Snapshots expire in order, so those after a ``tagged`` one stay as well.

    Raises `CommitConflictError` if another process expired the same snapshots concurrently.
    """
    table = place.find()
    if table is None or table.snapshot is None:
        return ExpireReport()
    place.require_owner(table)
    newest = table.snapshot
    looks: list[Callable[[], list[int]]] = [place.snapshots.ids, lambda: next_consumer_snapshots(place)]
    listed, consumers = map_with_store_concurrency(place.storage, lambda look: look(), looks)
    snapshots = list_history(place, newest, listed)
    cut = max(_first_retained(place, snapshots, rule, [*consumers, *tagged]) for rule in rules)
    expired = [*find_strays(place, snapshots[0], listed), *(snapshot for snapshot in snapshots if snapshot.id < cut)]
    if not expired:
        return ExpireReport()
    retained = [snapshot for snapshot in snapshots if snapshot.id >= cut]
    reach = ReachableFiles(place, table)
    candidates = reach.files_of_dropped(expired)
    if not dry_run:
        reach.needed([*retained, *list_tag_and_branch_snapshots(place)])  # finds damage before anything is deleted
        if claim is not None:
            claim([snapshot.id for snapshot in expired], [snapshot.id for snapshot in (*expired, *retained)])
        place.snapshots.expire([snapshot.id for snapshot in expired], cut)
    # Tags created from these snapshots until now count; from now on no reader can find the snapshots to tag them.
    files = _deletion_order(place, candidates - reach.needed([*retained, *list_tag_and_branch_snapshots(place)]))
    if not dry_run:
        for _, files_of_depth in groupby(files, key=partial(_depth, place)):
            delete_all(place.storage, [place.files.key_of(location) for location in files_of_depth])
    return ExpireReport(tuple(snapshot.id for snapshot in expired), tuple(files))


def _first_retained(
    place: PaimonTableBinding, snapshots: Sequence[Snapshot], rule: ExpiryRules, waited_for: Collection[int]
) -> int:
    """Return the number of the oldest snapshot that stays. Consumers and tags need those in ``waited_for``.

    Snapshots expire from the oldest without gaps. The one with the offsets of the oldest retained one stays too. If
    none has offsets, all stay, because only the first one proves that there never were any.
    """
    newest = snapshots[-1].id
    limits = [newest - max(rule.last, 1) + 1, newest, *waited_for]
    now_ms = place.storage.now_ms()
    times_ms = effective_times_ms([own_time_ms(snapshot) for snapshot in snapshots], now_ms)
    limits += [s.id for s, time_ms in zip(snapshots, times_ms, strict=True) if now_ms - time_ms < rule.ms][:1]
    cut = min(limits)
    carriers = [s.id for s in snapshots if s.id <= cut and OFFSETS_PROPERTY in (s.properties or {})]
    return int(carriers[-1] if carriers else snapshots[0].id)


def next_consumer_snapshots(place: PaimonTableBinding) -> list[int]:
    """Return the snapshots that consumers have yet to read."""
    folder = f"{place.spec.location}/consumer/"

    def next_of(name: str) -> int | None:
        try:
            return int(json.loads(place.storage.read(folder + name))["nextSnapshot"])
        except ObjectNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"lake file {folder}{name} does not say which snapshot its consumer reads next ({error}); restore it, "
                "or delete it where the consumer is no longer needed"
            ) from error

    next_numbers = map_with_store_concurrency(place.storage, next_of, place.storage.list_names(folder))
    return [number for number in next_numbers if number is not None]


def _deletion_order(place: PaimonTableBinding, locations: set[str]) -> list[str]:
    """Sort data files first, then manifests, then their lists. Leaves out files outside the warehouse, which belong to
    other engines.
    """
    inside = [location for location in locations if place.files.holds(location)]
    return sorted(inside, key=lambda file: (*_depth(place, file), file))


def _depth(place: PaimonTableBinding, file: str) -> tuple[bool, bool]:
    """Rank data files before manifests before their lists: each is named by files of the next kind."""
    return file.startswith(f"{place.location}/{MANIFEST_FOLDER}/"), "/manifest-list-" in file
