"""A tiered table whose lake is disabled: reads go on with what the lake holds, tiering stops, trimming waits."""

from __future__ import annotations

import pytest

from kit.rows import ids
from kit.tables import tier
from streamhouse_spark import InvalidOptionError
from streamhouse_spark.read.snapshot_fallback import fall_back_to_lake_snapshot

KINDS = [("iceberg", False), ("iceberg", True), ("paimon", False), ("paimon", True)]
HOUR_MS = 3_600_000


def write(table, *ids) -> None:
    rows = [{"id": i} for i in ids]
    table.upsert(rows) if table.state.primary_key else table.append(rows)


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}{' keyed' if kind[1] else ''}")
def table(request, wh, own_cache):
    lake, is_keyed = request.param
    properties = {"table.datalake.format": lake, "table.log.ttl": "1h"}
    table = wh.create_table("t", "id BIGINT", primary_key=["id"] if is_keyed else [], properties=properties)
    write(table, 1, 2, 3)
    tier(table)
    write(table, 4)
    table.alter(set_properties={"table.datalake.enabled": "false"})
    return wh.table("t")


def test_reads_go_on_and_tiering_stops(table):
    write(table, 5)
    assert ids(table.to_arrow()) == [1, 2, 3, 4, 5]
    assert ids(table.lake.to_arrow()) == [1, 2, 3]
    with pytest.raises(InvalidOptionError, match=r"table\.datalake\.enabled is false"):
        tier(table)
    assert table.refresh().lake.offsets == {0: 3}


def test_trimming_keeps_what_the_lake_lacks_and_enabled_again_it_goes_on(table, clock):
    for number in (5, 6):
        clock.advance(200 * HOUR_MS)
        write(table, number)
        table.maintain()
    assert table.state.buckets[0].start <= 3
    assert ids(table.to_arrow()) == [1, 2, 3, 4, 5, 6]
    table.alter(set_properties={"table.datalake.enabled": "true"})
    tier(table)
    assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [1, 2, 3, 4, 5, 6]


def test_a_pin_whose_snapshot_was_expired_is_taken_anew(table):
    assert fall_back_to_lake_snapshot(table).lake is not None


def test_dropped_for_good_its_lake_goes_too(table, wh, clock, store):
    place = table.state.lake_location
    assert store.list_names(f"{place}/")
    wh.drop_table("t")
    for _ in range(3):
        clock.advance(25 * HOUR_MS)
        wh.clean_dropped()
    assert not [info for info in store.list(f"{place}/") if info.key.endswith(".parquet")]
