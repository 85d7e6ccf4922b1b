"""Marks: the objects by which a change of a lake table shows."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LakeValidators:
    """Keys of objects. The lake is unchanged while the first are as they were and the others are absent."""

    there: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """The object that is the newest state of a lake table: every change puts another, or takes this one away."""

    key: str
    content: bytes
    """A digest of what it says."""
    following: str
    """The key of the object that the next change puts."""
