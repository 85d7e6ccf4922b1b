"""Tags: named versions in a table's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.log.commits.actions import Tag


@dataclass(frozen=True, slots=True)
class TaggedVersion:
    """A version that has a tag."""

    version: int
    uuid: str
    """Uuid of the object that holds the version's state."""
    time_ms: int
    """Time at which the tag was created."""
    lake_snapshot: int | None = None
    until_ms: int | None = None
    """Time from which on maintenance drops the tag; None for never."""


Tags = Mapping[str, TaggedVersion]


def with_tag(tags: Tags, tag: Tag, time_ms: int) -> Tags:
    """Return the tags with another one, created by a record of ``time_ms``."""
    until_ms = None if tag.retain_ms is None else time_ms + tag.retain_ms
    return {**tags, tag.name: TaggedVersion(tag.version, tag.uuid, time_ms, tag.lake_snapshot, until_ms)}


def without_tags(tags: Tags, names: Iterable[str]) -> Tags:
    dropped = set(names)
    return {name: tag for name, tag in tags.items() if name not in dropped}


def find_tag_of_version(tags: Tags, version: int) -> TaggedVersion | None:
    """Return a tag of the version; None if it has none."""
    return next((tag for tag in tags.values() if tag.version == version), None)


def tags_to_json(tags: Tags) -> dict[str, Any]:
    """Return the part of a checkpoint that holds the tags; empty without tags."""
    return {"tags": {name: asdict(tag) for name, tag in tags.items()}} if tags else {}


def tags_from_json(data: Mapping[str, Any]) -> Tags:
    return {name: TaggedVersion(**tag) for name, tag in data.items()}
