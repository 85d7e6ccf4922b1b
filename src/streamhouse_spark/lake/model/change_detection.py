"""Validators: the objects whose change reveals a change of a lake table."""

from __future__ import annotations

from streamhouse_spark.core.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LakeValidators:
    """Keys of objects. The lake is unchanged while those in ``there`` are unchanged and those in ``absent`` do not
    exist.
    """

    there: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """The object that holds the latest state of a lake table. Every change adds a successor or removes it."""

    key: str
    content: bytes
    """A digest of its content."""
    following: str
    """The key of the object that the next change adds."""
