"""`Table.overwrite(where=...)` and `Table.overwrite_partitions`: the part that the record finds, once."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kit.rows import ids, rows
from kit.tables import TableCase, tier, trim_tiered
from streamhouse_spark import (
    CommitConflictError,
    InvalidOptionError,
    OffsetsTrimmedError,
    SchemaMismatchError,
    TableNotFoundError,
    Transaction,
)
from streamhouse_spark.dml.overwrite import OverwriteTarget, commit_replacement
from streamhouse_spark.dml.validation import condition_filter
from streamhouse_spark.log.read_version import ReadVersion
from streamhouse_spark.read.system_tables import history_rows

pytestmark = pytest.mark.parametrize("store", ["memory"], indirect=True)
HOT = {"table.datalake.enabled": "false"}
DAY_1 = [("day", "=", 1)]
TABLE = TableCase("d.t", "id BIGINT, day INT", buckets=2, partition_by=["day"])


class TestWhatIsReplaced:
    def test_rows_of_a_condition_are_replaced_in_one_record(self, table, other_process):
        table.append(rows(*range(6)))
        before = table.refresh().version
        written = table.overwrite(rows(7, 10), where=DAY_1)
        assert sum(len(offsets) for offsets in written.values()) == 2
        assert table.refresh().version == before + 1
        for reader in (table, other_process().table("d.t")):
            assert ids(reader.to_arrow()) == [0, 2, 3, 5, 7, 10]
            assert reader.state.num_rows == 6
        name, added, deleted = (history_rows(table.storage, table.state)[-1][place] for place in (2, 6, 7))
        assert (name, added, deleted) == ("overwrite", 2, 2)

    def test_a_condition_on_any_column_selects_the_replaced_rows(self, table):
        table.append(rows(*range(6)))
        table.overwrite(rows(4, 4), where=(pc.field("id") > 2) & (pc.field("day") < 2))
        assert ids(table.to_arrow()) == [0, 1, 2, 4, 4, 5]

    def test_partitions_of_the_new_rows_are_replaced(self, table):
        table.append([*rows(*range(6)), *rows(20, 21), {"id": 22, "day": None}])
        table.overwrite_partitions([*rows(7), {"id": 23, "day": None}])
        found = {(r["id"], r["day"]) for r in table.to_arrow().to_pylist()}
        assert found == {(0, 0), (3, 0), (21, 0), (2, 2), (5, 2), (20, 2), (7, 1), (23, None)}

    def test_an_overwrite_without_rows_deletes_the_part(self, table):
        table.append(rows(*range(6)))
        assert dict(table.overwrite([], where=DAY_1)) == {}
        assert ids(table.to_arrow()) == [0, 2, 3, 5]
        version = table.refresh().version
        assert dict(table.overwrite([], where=DAY_1)) == {}
        assert dict(table.overwrite_partitions([])) == {}
        assert table.refresh().version == version, "nothing to replace leaves no record"

    def test_an_overwrite_of_an_empty_part_appends(self, table):
        table.overwrite(rows(1), where=DAY_1)
        table.overwrite_partitions(rows(2))
        assert ids(table.to_arrow()) == [1, 2]

    def test_a_stream_sees_deleted_rows(self, table):
        table.append(rows(*range(6)))
        tail = table.tail("earliest", until_ms=0, poll_ms=0)
        for _ in tail:
            pass
        position = tail.position
        table.overwrite(rows(7), where=DAY_1)
        with pytest.raises(OffsetsTrimmedError, match=r"deleted rows of d\.t"):
            list(table.tail(position, until_ms=0, poll_ms=0))
        found = pa.concat_tables(pa.Table.from_batches([b]) for b in table.tail("earliest", until_ms=0, poll_ms=0))
        assert ids(found) == [0, 2, 3, 5, 7]

    def test_a_table_that_is_all_hot(self, wh):
        table = wh.create_table("d.hot", "id BIGINT, day INT", properties=HOT)
        table.append(rows(*range(6)))
        table.overwrite(rows(1), where=DAY_1)
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 5]


class TestTheLake:
    @pytest.mark.parametrize("lake", ["iceberg", "paimon"])
    def test_a_round_has_exactly_the_rows(self, wh, lake):
        properties = {"table.datalake.format": lake}
        table = wh.create_table("d.t", "id BIGINT, day INT", buckets=2, partition_by=["day"], properties=properties)
        table.append(rows(*range(6)))
        tier(table)
        table.append(rows(7, 8))
        table.overwrite(rows(10), where=DAY_1)
        table.overwrite_partitions(rows(9))
        assert ids(table.to_arrow()) == [2, 5, 8, 9, 10]
        tier(table)
        assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [2, 5, 8, 9, 10]
        trim_tiered(table)
        table.overwrite(rows(13), where=DAY_1)
        tier(table)
        assert ids(table.lake.to_arrow()) == ids(table.to_arrow()) == [2, 5, 8, 9, 13]


class TestOthers:
    def test_rows_appended_while_it_looked_go_too(self, table, other_process, monkeypatch):
        table.append(rows(*range(6)))
        other = other_process().table("d.t")
        right, news = OverwriteTarget.__call__, iter([7, 8, 10])

        def late(self, state):
            number = next(news, None)
            if number is not None:
                other.append(rows(number))
            return right(self, state)

        monkeypatch.setattr(OverwriteTarget, "__call__", late)
        table.overwrite(rows(1), where=DAY_1)
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 5, 8]

    def test_rows_deleted_while_it_looked_are_no_conflict(self, table, other_process, monkeypatch):
        table.append(rows(*range(6)))
        other = other_process().table("d.t")
        right, times = OverwriteTarget.locate, iter(range(1))

        def looked(self):
            right(self)
            for _ in times:
                other.delete(where=[("id", "=", 4)])

        monkeypatch.setattr(OverwriteTarget, "locate", looked)
        table.overwrite(rows(1), where=DAY_1)
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 5]
        assert table.refresh().num_rows == 5

    @pytest.mark.parametrize("times", [1, 9])
    @pytest.mark.parametrize("what", ["truncate", "tier", "alter"])
    def test_what_others_do_while_it_looked(self, table, other_process, monkeypatch, what, times):
        table.append(rows(*range(6)))
        table.delete(where=[("id", "=", 0)])
        other = other_process().table("d.t")
        right, left = OverwriteTarget.locate, iter(range(times))

        def act(number):
            if what == "truncate":
                other.truncate()
                other.append(rows(20, 22))
            elif what == "tier":
                other.append(rows(22))
                other.delete(where=[("id", "=", 22)])
                tier(other)
                trim_tiered(other)
            else:
                other.add_columns(f"c{number} INT")

        def looked(self):
            right(self)
            if (number := next(left, None)) is not None:
                act(number)

        monkeypatch.setattr(OverwriteTarget, "locate", looked)
        table.overwrite(rows(1), where=DAY_1)
        assert ids(table.to_arrow()) == ([1, 20] if what == "truncate" else [1, 2, 3, 5])
        tier(table)
        assert ids(table.lake.to_arrow()) == ids(table.to_arrow())

    def test_two_replacements_of_a_partition_leave_the_rows_of_the_later(self, table, other_process, monkeypatch):
        table.append(rows(*range(6)))
        right, times = OverwriteTarget.locate, iter(range(1))

        def looked(self):
            right(self)
            for _ in times:
                other_process().table("d.t").overwrite_partitions(rows(31, 34))

        monkeypatch.setattr(OverwriteTarget, "locate", looked)
        table.overwrite_partitions(rows(40))
        assert ids(table.to_arrow()) == [0, 2, 3, 5, 40]

    def test_an_overwrite_fails_if_its_column_was_renamed_concurrently(self, table, other_process):
        table.append(rows(*range(6)))
        other_process().table("d.t").rename_column("id", "number")
        with pytest.raises(SchemaMismatchError, match="'id'"):
            table.overwrite(rows(1), where=DAY_1)
        table.overwrite([{"number": 1, "day": 1}], where=DAY_1)
        assert sorted(table.to_arrow()["number"].to_pylist()) == [0, 1, 2, 3, 5]

    def test_an_overwrite_of_a_dropped_table_fails(self, table, other_process):
        table.append(rows(1))
        other_process().drop_table("d.t")
        with pytest.raises(TableNotFoundError):
            table.overwrite(rows(1), where=DAY_1)

    def test_rows_that_were_read_are_the_same(self, table, other_process):
        """New rows that were made of the table's own: what it had in the part may not have changed since."""
        table.append(rows(*range(6)))
        other, choose = other_process().table("d.t"), condition_filter(DAY_1)

        def replace(read):
            return commit_replacement(table, table.log_writer.stage(rows(1)), choose, None, read)

        for change in (
            lambda: other.append(rows(7)),
            lambda: other.delete(where=[("id", "=", 7)]),
            other.truncate,
        ):
            read = ReadVersion.of(table.refresh())
            change()
            with pytest.raises(CommitConflictError, match="run the statement again"):
                replace(read)
        read = ReadVersion.of(table.refresh())
        other.append(rows(8))
        replace(read)
        assert ids(table.to_arrow()) == [1, 8]


class TestOnce:
    def test_an_overwrite_of_a_transaction_happens_once(self, table, other_process):
        table.append(rows(*range(6)))
        transaction = Transaction("job", 1)
        written = table.overwrite(rows(1), where=DAY_1, transaction=transaction)
        table.append(rows(7))
        again = other_process().table("d.t").overwrite(rows(1), where=DAY_1, transaction=transaction)
        assert dict(again) == dict(written)
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 5, 7]
        table.overwrite_partitions([], transaction=Transaction("job", 2))
        table.overwrite_partitions(rows(7), transaction=Transaction("job", 2))
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 5, 7]


class TestRefused:
    def test_new_rows_outside_the_replaced_part_are_rejected(self, table):
        table.append(rows(*range(6)))
        with pytest.raises(SchemaMismatchError, match=r"1 of 2 new rows do not match the condition.*row 1 \(day = 2\)"):
            table.overwrite(rows(1, 2), where=DAY_1)
        with pytest.raises(SchemaMismatchError, match="1 of 1 new rows"):
            table.overwrite([{"id": 1, "day": None}], where=pc.field("day") == 1)
        assert ids(table.to_arrow()) == [0, 1, 2, 3, 4, 5]

    def test_bad_conditions_of_an_overwrite_are_rejected(self, table, wh):
        with pytest.raises(InvalidOptionError, match="found no condition, expected at least one"):
            table.overwrite(rows(1), where=[])
        with pytest.raises(SchemaMismatchError, match="no column 'dy'; did you mean 'day'"):
            table.overwrite(rows(1), where=[("dy", "=", 1)])
        plain = wh.create_table("d.plain", "id BIGINT")
        with pytest.raises(InvalidOptionError, match="not partitioned"):
            plain.overwrite_partitions([{"id": 1}])

    def test_a_row_that_does_not_fit(self, table):
        table.append(rows(1))
        with pytest.raises(SchemaMismatchError):
            table.overwrite_partitions([{"id": "x", "day": 1}])
        assert ids(table.to_arrow()) == [1]
