"""The files that a state of a table names."""

from __future__ import annotations

from streamhouse_spark.core.paths import commit_key, manifest_key, segment_key, tag_key
from streamhouse_spark.log.commits.state import TableState


def referenced_keys(state: TableState) -> set[str]:
    """Return the keys of all files that a reader of this state may open, records and the objects of tags included."""
    keys: set[str] = set()
    for segment in state.kept_segments():
        if segment.uuid is not None:
            keys.add(segment_key(state.table_uuid, segment.uuid))
        else:
            keys.add(commit_key(state.table_uuid, segment.commit))
            if segment.commit in state.manifests:
                keys.add(manifest_key(state.table_uuid, state.manifests[segment.commit]))
    keys.update(tag_key(state.table_uuid, tag.uuid) for tag in state.tags.values())
    return keys


def manifest_keys(state: TableState, *, at_least: int = 0) -> set[str]:
    """Return the keys of manifests of records from ``at_least`` on, which may still be read."""
    return {manifest_key(state.table_uuid, uuid) for n, uuid in state.manifests.items() if n >= at_least}
