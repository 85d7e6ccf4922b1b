"""A lake that is put back to before partitions were dropped, and the log is not: offsets say nothing of a drop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from faults.plants import patched, plant
from faults.test_relocation_calls import filled, ids, opened, tier
from streamhouse_spark import LakeRolledBackError
from streamhouse_spark.lake.tiering import job as tiering
from streamhouse_spark.read import stand_ins
from streamhouse_spark.table import maintain as maintenance


def a_lake_of_before_a_drop(lake: str = "iceberg") -> None:
    """Restore a lake from before a drop: reading or tiering it raises, or finds no row of the dropped partition."""
    storage = filled(lake, keyed=False)
    tier(opened(storage, 2).table("t"))
    older = {info.key: storage.read(info.key) for info in storage.list("lake/")}
    opened(storage, 3).table("t").drop_partition({"p": "y"})
    wanted = ids(opened(storage, 4).table("t"))
    for key in [info.key for info in storage.list("lake/")]:
        storage.delete(key)
    for key, data in older.items():
        storage.put(key, data)
    with suppress(LakeRolledBackError):
        tier(opened(storage, 5).table("t"))
    with suppress(LakeRolledBackError):
        assert ids(opened(storage, 6).table("t")) == wanted


@plant
def drops_are_not_missed_in_an_older_lake() -> Iterator[None]:
    modules = (stand_ins, maintenance, tiering)
    with patched(*((module, "require_dropped", lambda *_: None) for module in modules)):
        yield


RESTORED_FINDERS = {"drops_are_not_missed_in_an_older_lake": a_lake_of_before_a_drop}
