"""How many manifests a filtered read opens, and which files it is left with: no more than the filter's partitions."""

from __future__ import annotations

import pytest

from faults.faulty_storage import FaultyStorage
from streamhouse_spark.expressions.predicates import ALWAYS_TRUE, And, Compare, In, IsNull, Not, Or
from unit.lake.large_lakes import BUCKETS, DAYS_PER_ROUND, FIRST_DAY, ROUNDS, SCHEMA, daily_lake

LAST_DAY = FIRST_DAY + ROUNDS * DAYS_PER_ROUND - 1
DAYS = ROUNDS * DAYS_PER_ROUND


def opened(counted: FaultyStorage, lake, node) -> tuple[int, int]:
    """Manifests that planning opens, and files that it leaves."""
    snapshot_id = lake.newest().id
    counted.trace.clear()
    scan = lake.scan_files(snapshot_id=snapshot_id, columns=["id"], schema=SCHEMA, node=node)
    keys = [key.rpartition("/")[2] for _, method, key in counted.trace if method == "read"]
    manifests = [k for k in keys if (k.endswith(".avro") and not k.startswith("snap-")) or k.startswith("manifest-")]
    return len([k for k in manifests if not k.startswith("manifest-list-")]), len(scan.files)


@pytest.mark.parametrize(("lake_format", "num_manifests"), [("iceberg", 2), ("paimon", 20)])
def test_a_filtered_read_opens_the_manifests_of_its_partitions(memory, world, lake_format, num_manifests):
    """A lake of 2,000 files in 200 partitions. Iceberg's rounds have joined all manifests but the newest."""
    counted = FaultyStorage(memory)
    lake = daily_lake(counted, world, lake_format)
    assert opened(counted, lake, ALWAYS_TRUE) == (num_manifests, DAYS * BUCKETS)
    for node, num_days in [
        (Compare("=", "day", LAST_DAY), 1),
        (Compare("=", "day", FIRST_DAY + 3), 1),
        (And((Compare(">", "day", LAST_DAY - 2), Compare(">=", "id", 0))), 2),
        (In("day", (LAST_DAY, LAST_DAY - 1), has_null=False), 2),
        (And((Not(IsNull("day")), Compare("<=>", "day", LAST_DAY))), 1),
    ]:
        assert opened(counted, lake, node) == (1, num_days * BUCKETS), node
    for node in [Compare(">", "day", LAST_DAY), IsNull("day"), Not(Compare("<=", "day", LAST_DAY))]:
        assert opened(counted, lake, node) == (0, 0), node
    either = Or((Compare("=", "day", LAST_DAY), Compare("=", "day", FIRST_DAY)))
    assert opened(counted, lake, either) == (2, 2 * BUCKETS)
    assert opened(counted, lake, Compare("=", "id", -1)) == (num_manifests, 0)


def test_a_read_opens_the_manifests_of_hidden_partitions(memory, world):
    """A partition by days may hold rows of its neighbours, as far as its manifest knows; its files know better."""
    counted = FaultyStorage(memory)
    lake = daily_lake(counted, world, "iceberg", "days(day)")
    assert opened(counted, lake, ALWAYS_TRUE) == (2, DAYS * BUCKETS)
    for node, num_days in [
        (Compare("=", "day", LAST_DAY), 1),
        (Compare("=", "day", FIRST_DAY + 3), 1),
        (And((Compare(">", "day", LAST_DAY - 2), Compare(">=", "id", 0))), 2),
        (Compare(">", "day", LAST_DAY), 0),
    ]:
        assert opened(counted, lake, node) == (1, num_days * BUCKETS), node
    for node in [Compare(">", "day", LAST_DAY + 1), Compare("<", "day", FIRST_DAY - 1), IsNull("day")]:
        assert opened(counted, lake, node) == (0, 0), node
