"""Loading the changes of a table, and planning the batches of a stream of them, as the JVM class asks for it."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from typing import Any

import pytest

from streamhouse_spark import DifferentHistoryError, InvalidOptionError, SchemaMismatchError
from streamhouse_spark.datasource.scan import changes_clause
from streamhouse_spark.log.actions import SetSchema
from streamhouse_spark.schema.table_schema import TableSchema
from streamhouse_spark.write.auto_compaction import compact_inline_rows
from unit.datasource.scan.scans import Planned, Scans

FAR_US = 4_000_000_000_000_000
"""A time to which no clock here is set."""


@pytest.fixture
def people(catalog, connection):
    catalog.create("sales", "people", "id bigint, n int", primary_key=["id"], properties={"bucket.num": "1"})
    table = connection.table("sales.people")
    for n in range(4):
        table.upsert([{"id": 1, "n": n}])
    return table


def load(scans: Scans, start: str = "0", end: str | None = None, **more: Any) -> dict[str, Any]:
    asked = {"by": "version", "start": start, "end": end, "includes_start": True, "includes_end": True}
    args = {"database": "sales", "table": "people", "range": asked, "mode": "none", **more}
    return json.loads(json.dumps(changes_clause.load_changes(scans.connection, args)))


def asked(scans: Scans, loaded: dict[str, Any], start: Any, until: int | None = None) -> Any:
    return changes_clause.end_of_changes(
        scans.connection, {"snapshot": loaded["snapshot"], "start": start, "until": until}
    )


def first(loaded: dict[str, Any]) -> dict[str, Any]:
    return {"uuid": loaded["uuid"], "commit": loaded["first"] - 1, "attempt": None, "time_us": None}


def batch(scans: Scans, loaded: dict[str, Any], start: Any, end: Any) -> list[dict[str, Any]]:
    planned = scans.plan(loaded)
    given = {
        "snapshot": loaded["snapshot"],
        "columns": planned.schema.names,
        "filters": [],
        "limit": None,
        "options": {},
        "parallelism": 2,
        "native_schemes": [],
        "start": start,
        "end": end,
    }
    reply = changes_clause.plan_batch_of_changes(scans.connection, given)
    return Planned(scans.connection, json.loads(json.dumps(reply)), planned.schema).rows()


def test_a_changes_scan_has_the_columns_and_rows_of_its_range(people, scans):
    loaded = load(scans, "3", "4")
    assert (loaded["kind"], loaded["row_id"], loaded["first"], loaded["validators"]) == ("changes", ["id"], 3, None)
    rows = scans.plan(loaded).rows()
    assert [(r["n"], r["_change_type"], r["_commit_version"]) for r in rows] == [
        (0, "update_preimage", 3),
        (1, "update_postimage", 3),
        (1, "update_preimage", 4),
        (2, "update_postimage", 4),
    ]
    assert scans.plan(loaded, ["_commit_version"]).rows() == [{"_commit_version": v} for v in (3, 3, 4, 4)]
    assert len(scans.plan(loaded, [])["hot"]) == 1
    assert scans.aggregate(loaded, ("count_star", None)) is None


def test_a_stream_reads_each_commit_once_whatever_its_batches(people, scans):
    loaded = load(scans)
    assert asked(scans, loaded, None) == {"newest": 5, "offset": None}
    middle = asked(scans, loaded, first(loaded), until=3)["offset"]
    assert middle["commit"] == 3
    end = asked(scans, loaded, middle)["offset"]
    assert end["commit"] == 5
    assert asked(scans, loaded, end)["offset"] is None
    both = [*batch(scans, loaded, first(loaded), middle), *batch(scans, loaded, middle, end)]
    assert both == scans.plan(loaded).rows() == batch(scans, loaded, first(loaded), end)
    compact_inline_rows(people)
    people.alter_properties({"comment": "no rows"})
    assert asked(scans, loaded, end)["offset"] is None, "no batch for a commit without changes"
    assert batch(scans, loaded, middle, end) == both[3:], "and a batch that is repeated is the same"


def test_times_of_a_batch_are_later_than_those_before_it(people, scans):
    loaded = load(scans)
    middle = {**asked(scans, loaded, first(loaded), until=3)["offset"], "time_us": FAR_US}
    end = asked(scans, loaded, middle)["offset"]
    assert end["time_us"] == FAR_US + 2
    shown = {(r["_commit_version"], r["_commit_timestamp"]) for r in batch(scans, loaded, middle, end)}
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    assert shown == {(3 + step, epoch + dt.timedelta(microseconds=FAR_US + step)) for step in (1, 2)}


def test_a_stream_of_a_range_with_an_end_goes_no_further(people, scans):
    loaded = load(scans, "2", "3")
    assert asked(scans, loaded, None)["newest"] == 3
    end = asked(scans, loaded, first(loaded))["offset"]
    assert end["commit"] == 3
    assert asked(scans, loaded, end)["offset"] is None


def test_offsets_of_other_histories_and_tables_are_refused(people, scans):
    loaded = load(scans)
    end = asked(scans, loaded, first(loaded))["offset"]
    for other in ({**end, "attempt": "another"}, {**end, "uuid": "another"}):
        with pytest.raises(DifferentHistoryError):
            asked(scans, loaded, other)
        with pytest.raises(DifferentHistoryError):
            batch(scans, loaded, first(loaded), other)


def test_a_batch_has_the_columns_that_its_stream_began_with(people, scans):
    loaded = load(scans)
    end = asked(scans, loaded, first(loaded))["offset"]
    version = people.state.schema_id
    people.log.commit(lambda state, _ms: (SetSchema(version + 1, state.schema),))
    assert batch(scans, loaded, first(loaded), end), "the columns of another schema may be the same"
    people.alter(add_columns="more STRING")
    with pytest.raises(InvalidOptionError, match=r"the columns of sales\.people changed"):
        batch(scans, loaded, first(loaded), end)
    assert batch(scans, load(scans), first(loaded), end)[0]["more"] is None


def test_a_column_of_the_name_of_ours_is_refused(people, scans):
    own = replace(people.state.schema.columns[1], name="_commit_version")  # as an older version of this package took it
    columns = TableSchema((people.state.schema.columns[0], own))
    people.log.commit(lambda *_: (SetSchema(2, columns),))
    with pytest.raises(SchemaMismatchError, match=r"sales\.people CHANGES adds a column '_commit_version'"):
        load(scans)
