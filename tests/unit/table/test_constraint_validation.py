"""CHECK constraints: every writer keeps them, and one is added only where all rows do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from kit.tables import tier
from streamhouse_spark import (
    CommitConflictError,
    ConstraintViolatedError,
    FormatVersionError,
    InvalidOptionError,
    Table,
)
from streamhouse_spark.expressions.check_constraints import parse_checks
from streamhouse_spark.log import checkpoint as checkpoint_module
from streamhouse_spark.log.checkpoint import read_checkpoint, write_checkpoint
from streamhouse_spark.table.constraint_validation import ConstraintValidation, RevalidateError

POSITIVE = "table.constraint.positive"
COLUMNS = "id bigint not null, amount decimal(10,2), note string default 'new'"


def made(wh: Any, name: str = "a.t", **how: Any) -> Table:
    return wh.create_table(name, COLUMNS, properties={POSITIVE: "amount > 0", **how.pop("properties", {})}, **how)


def rows_of(table: Table) -> dict[int, Any]:
    return {row["id"]: row["amount"] for row in table.to_arrow().to_pylist()}


class TestWrites:
    def test_an_append_in_breach_writes_nothing(self, wh):
        table = made(wh)
        table.append([{"id": 1, "amount": 1}, {"id": 2, "amount": None}])
        version = table.state.version
        with pytest.raises(ConstraintViolatedError) as caught:
            table.append([{"id": 3, "amount": 1}, {"id": 4, "amount": -1}, {"id": 5, "amount": 0}])
        text = str(caught.value)
        assert text.startswith(f"CONSTRAINT_VIOLATED: 2 of 3 rows for {table.name} violate")
        assert "constraint 'positive' CHECK (amount > 0), such as amount = Decimal('-1.00')" in text
        assert table.refresh().version == version
        assert rows_of(table).keys() == {1, 2}
        table.append([{"id": 3, "amount": 1}, {"id": 4, "amount": 1}])
        assert rows_of(table).keys() == {1, 2, 3, 4}

    def test_overwrites_must_satisfy_the_constraints(self, wh):
        table = made(wh)
        table.append([{"id": 1, "amount": 1}])
        for where in (None, [("id", "=", 1)]):
            with pytest.raises(ConstraintViolatedError):
                table.overwrite([{"id": 1, "amount": -1}], where=where)
        assert rows_of(table).keys() == {1}

    def test_a_writer_refuses_the_rows_of_one_call_alone(self, wh):
        table = made(wh)
        with table.writer() as writer:
            writer.send({"id": 1, "amount": 1})
            with pytest.raises(ConstraintViolatedError):
                writer.send({"id": 2, "amount": -1})
            writer.send({"id": 3, "amount": 1})
        assert rows_of(table).keys() == {1, 3}

    def test_defaults_are_checked_as_they_are_stored(self, wh):
        table = wh.create_table("a.d", COLUMNS, properties={"table.constraint.known": "note IN ('new', 'old')"})
        table.append([{"id": 1}])
        table.alter(defaults={"note": "other"})
        with pytest.raises(ConstraintViolatedError):
            table.append([{"id": 2}])

    def test_an_unknown_function_creates_no_table(self, wh):
        with pytest.raises(InvalidOptionError, match=r"calls soundex\(…\)"):
            wh.create_table("a.t", COLUMNS, properties={POSITIVE: "soundex(note) = 'A'"})
        made(wh)
        assert wh.tables("a") == ["a.t"]


class TestByKey:
    @pytest.mark.parametrize("image", ["full", "wal"])
    def test_upserts_partial_updates_and_deletes(self, wh, image):
        table = made(wh, primary_key=["id"], properties={"table.changelog.image": image})
        table.upsert([{"id": 1, "amount": 1, "note": "a"}])
        for how in ({}, {"columns": ["amount"]}):
            with pytest.raises(ConstraintViolatedError):
                table.upsert([{"id": 1, "amount": -1}], **how)
        table.upsert([{"id": 1, "note": "b"}], columns=["note"])
        assert rows_of(table)[1] == 1
        table.delete([1])
        assert rows_of(table) == {}

    def test_a_partial_update_is_checked_with_the_rest_of_its_row(self, wh):
        columns = "id bigint, low int, high int"
        table = wh.create_table("a.k", columns, primary_key=["id"], properties={"table.constraint.r": "low <= high"})
        table.upsert([{"id": 1, "low": 1, "high": 5}])
        with pytest.raises(ConstraintViolatedError, match="low = 6, high = 5"):
            table.upsert([{"id": 1, "low": 6}], columns=["low"])

    def test_an_aggregation_is_checked_as_it_is_merged(self, wh):
        properties = {
            "table.merge-engine": "aggregation",
            "fields.total.agg": "sum",
            "table.constraint.most": "total <= 10",
        }
        table = wh.create_table("a.g", "id bigint, total bigint", primary_key=["id"], properties=properties)
        table.upsert([{"id": 1, "total": 6}])
        with pytest.raises(ConstraintViolatedError, match="total = 12"):
            table.upsert([{"id": 1, "total": 6}])
        table.upsert([{"id": 1, "total": 4}])
        assert table.to_arrow().to_pylist() == [{"id": 1, "total": 10}]


class TestAltering:
    @pytest.mark.parametrize("key", [[], ["id"]])
    def test_rows_of_lake_and_log_are_checked_first(self, wh, key):
        table = wh.create_table("a.t", COLUMNS, primary_key=key)
        write = table.upsert if key else table.append
        write([{"id": 1, "amount": -1}, {"id": 2, "amount": 1}])
        tier(table)
        write([{"id": 3, "amount": -3}])
        version = table.refresh().version
        with pytest.raises(ConstraintViolatedError, match="2 of 3 rows of"):
            table.alter(set_properties={POSITIVE: "amount > 0"})
        assert table.refresh().version == version
        table.alter(set_properties={POSITIVE: "amount > -5"})
        with pytest.raises(ConstraintViolatedError):
            write([{"id": 4, "amount": -9}])
        table.alter(unset_properties=[POSITIVE])
        write([{"id": 4, "amount": -9}])
        tier(table)
        assert len(rows_of(table)) == 4

    @pytest.mark.parametrize("key", [[], ["id"]])
    @pytest.mark.parametrize("amount", [-1, 1])
    def test_rows_that_come_between_are_checked_too(self, wh, monkeypatch, key, amount):
        table = wh.create_table("a.t", COLUMNS, primary_key=key)
        other = wh.table("a.t")
        (table.upsert if key else table.append)([{"id": 1, "amount": 1}])
        look, came = ConstraintValidation.check_all, []

        def look_and_append(checked: ConstraintValidation, *args: Any) -> None:
            look(checked, *args)
            if not came:
                came.append(amount)
                (other.upsert if key else other.append)([{"id": 2, "amount": amount}])

        monkeypatch.setattr(ConstraintValidation, "check_all", look_and_append)
        if amount < 0:
            with pytest.raises(ConstraintViolatedError):
                table.alter(set_properties={POSITIVE: "amount > 0"})
            assert POSITIVE not in table.refresh().properties
        else:
            table.alter(set_properties={POSITIVE: "amount > 0"})
            assert POSITIVE in table.refresh().properties
        assert came == [amount]
        assert rows_of(table).keys() == {1, 2}

    @pytest.mark.parametrize("image", ["full", "wal"])
    @pytest.mark.parametrize("key", [[], ["id"]])
    def test_only_what_came_is_checked_again(self, wh, key, image):
        """So a writer that commits more often than all rows can be read is in the way of no constraint."""
        images = {"table.changelog.image": image} if key else {}
        table, other = wh.create_table("a.t", COLUMNS, primary_key=key, properties=images), wh.table("a.t")
        write = other.upsert if key else other.append
        write([{"id": number, "amount": 1} for number in range(9)])
        checks = parse_checks({POSITIVE: "amount > 0"}, table.state.schema)
        checked = ConstraintValidation(table, may_read_all=False)
        checked.check_all(table.refresh(), checks)
        for number in range(4):
            write([{"id": number, "amount": 2}, {"id": 20 + number, "amount": 1}])
            if key:
                other.delete([8 - number])
            checked.check_appended(table.refresh(), checks)
        write([{"id": 1, "amount": -1}])
        with pytest.raises(RevalidateError):
            checked.check_appended(table.refresh(), checks)
        with pytest.raises(ConstraintViolatedError):
            ConstraintValidation(table, may_read_all=True).check_appended(table.refresh(), checks)

    def test_rows_staged_before_are_checked_by_the_commit(self, wh):
        """Staged rows keep no constraint that came later; an append stages them again, and finds the breach."""
        table, other = wh.create_table("a.t", COLUMNS), wh.table("a.t")
        rows = pa.Table.from_pylist([{"id": 2, "amount": -1, "note": ""}], schema=table.state.schema.arrow)
        staged = other.log_writer.stager().stage(rows)
        other.append([{"id": 1, "amount": 1}])
        table.alter(set_properties={POSITIVE: "amount > 0"})
        with pytest.raises(CommitConflictError, match="a constraint was added while rows were staged"):
            other.log_writer.commit(staged)
        with pytest.raises(ConstraintViolatedError):
            other.append([{"id": 2, "amount": -1}])
        other.append([{"id": 3, "amount": 3}])
        assert rows_of(table).keys() == {1, 3}

    def test_a_writer_by_key_that_knows_an_older_state(self, wh):
        table = wh.create_table("a.t", COLUMNS, primary_key=["id"])
        other = wh.table("a.t")
        other.upsert([{"id": 1, "amount": 1}])
        table.alter(set_properties={POSITIVE: "amount > 0"})
        with pytest.raises(ConstraintViolatedError):
            other.upsert([{"id": 1, "amount": -1}])
        assert rows_of(table)[1] == 1

    @pytest.mark.parametrize("key", [[], ["id"]])
    def test_whoever_is_faster_no_row_is_in_breach(self, wh, key):
        for number in range(5):
            name = f"a.t{number}"
            table = wh.create_table(name, COLUMNS, primary_key=key)
            (table.upsert if key else table.append)([{"id": 1, "amount": 1}])

            def write(name: str = name) -> bool:
                other = wh.table(name)
                return not _fails((other.upsert if key else other.append), [{"id": 2, "amount": -1}])

            def constrain(name: str = name) -> bool:
                return not _fails(lambda _: wh.table(name).alter(set_properties={POSITIVE: "amount > 0"}), None)

            with ThreadPoolExecutor(2) as pool:
                wrote, constrained = pool.submit(write), pool.submit(constrain)
            assert wrote.result() != constrained.result()
            table.refresh()
            assert (2 in rows_of(table)) == wrote.result()

    @pytest.mark.parametrize("change", [{"rename_columns": {"amount": "sum"}}, {"drop_columns": ["amount"]}])
    def test_a_column_of_a_constraint_stays(self, wh, change):
        table = made(wh)
        with pytest.raises(InvalidOptionError, match="named in the constraint 'positive'"):
            table.alter(**change)

    def test_a_wider_type_that_the_condition_takes(self, wh):
        table = made(wh)
        table.alter(widen_columns={"amount": "decimal(20,2)"})
        with pytest.raises(ConstraintViolatedError):
            table.append([{"id": 1, "amount": -1}])

    @pytest.mark.parametrize("key", [[], ["id"]])
    @pytest.mark.parametrize("amount", [-1, 5])
    def test_rows_that_a_rollback_brings_back_keep_a_later_constraint(self, wh, key, amount):
        table = wh.create_table("a.t", COLUMNS, primary_key=key)
        add = table.upsert if key else table.append
        add([{"id": 1, "amount": amount}, {"id": 2, "amount": 7}])
        version = table.state.version
        table.delete([{"id": 1}]) if key else table.delete(where=[("id", "=", 1)])
        table.alter(set_properties={POSITIVE: "amount > 0"})
        table.set_default("amount", 3)
        newest = table.refresh().version
        if amount < 0:
            with pytest.raises(ConstraintViolatedError, match="violate constraint"):
                table.rollback_to_version(version)
            assert table.refresh().version == newest
        else:
            assert table.rollback_to_version(version).rows_added == 1
            assert sorted(table.to_arrow()["id"].to_pylist()) == [1, 2]
            assert table.state.properties[POSITIVE] == "amount > 0"


def _fails(write: Any, rows: Any) -> bool:
    try:
        write(rows)
    except ConstraintViolatedError:
        return True
    return False


def test_an_older_version_stops_at_a_checkpoint_with_constraints(wh, monkeypatch):
    table = made(wh)
    write_checkpoint(table.storage, table.state)
    assert read_checkpoint(table.storage, table.uuid, table.state.version).properties[POSITIVE] == "amount > 0"
    monkeypatch.setattr(checkpoint_module, "NEWEST_VERSION", checkpoint_module.TAGS_VERSION)
    with pytest.raises(FormatVersionError):
        read_checkpoint(table.storage, table.uuid, table.state.version)
