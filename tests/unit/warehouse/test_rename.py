"""A table gets another name, and everything that knows its uuid goes on."""

from __future__ import annotations

import pytest

from kit.tables import tier
from streamhouse_spark import InvalidNameError, TableExistsError, TableNotFoundError
from streamhouse_spark.core.types import TablePath
from streamhouse_spark.log.catalog import names

OLD, NEW = "sales.orders", "archive.sold"


@pytest.fixture
def table(wh):
    wh.create_database("archive")
    table = wh.create_table(OLD, "id bigint, text string")
    table.append([{"id": 1, "text": "a"}])
    return table


def test_rows_offsets_and_lake_stay(wh, table, other_process):
    tier(table)
    lake = table.lake.files().column("file_path").to_pylist()
    wh.rename_table(OLD, NEW)
    renamed = other_process().table(NEW)
    assert (renamed.uuid, renamed.name) == (table.uuid, NEW)
    assert wh.tables() == [NEW]
    assert renamed.lake.files().column("file_path").to_pylist() == lake
    renamed.append([{"id": 2, "text": "b"}])
    tier(renamed)
    assert sorted(renamed.lake.to_arrow().column("id").to_pylist()) == [1, 2]
    assert wh.view(f"{NEW}$lake").to_arrow().num_rows == 2


def test_whoever_has_it_open_goes_on(wh, table, other_process):
    other = other_process().table(OLD)
    tail = other.tail("latest", until_ms=0, poll_ms=0)
    wh.rename_table(OLD, NEW)
    other.append([{"id": 2, "text": "b"}])
    assert [batch.num_rows for batch in tail] == [1]
    assert other.name == NEW
    assert table.refresh().name == NEW


def test_the_old_name_says_the_new_one_and_is_free(wh, table, other_process):
    wh.rename_table(OLD, NEW)
    for process in (wh, other_process()):
        with pytest.raises(TableNotFoundError, match=f"renamed to {NEW}"):
            process.table(OLD)
        assert not process.exists(OLD)
    again = wh.create_table(OLD, "id bigint")
    assert again.uuid != table.uuid
    assert again.state.lake_location != table.state.lake_location, "the other table's lake lies at its first place"
    again.append([{"id": 9}])
    tier(again)
    tier(table)
    assert (again.lake.to_arrow().num_rows, table.lake.to_arrow().num_rows) == (1, 1)


def test_a_table_is_renamed_and_renamed_back(wh, table):
    for _ in range(3):
        wh.rename_table(OLD, NEW)
        wh.rename_table(NEW, OLD)
    assert wh.table(OLD).to_arrow().num_rows == 1
    assert wh.tables() == [OLD]
    assert wh.drop_table(OLD)
    assert wh.tables() == []


def test_renames_to_taken_names_are_rejected(wh, table):
    wh.create_table(NEW, "id bigint")
    with pytest.raises(TableExistsError, match=NEW):
        wh.rename_table(OLD, NEW)
    with pytest.raises(TableExistsError):
        wh.rename_table(OLD, OLD)
    with pytest.raises(TableNotFoundError, match="DATABASE_NOT_FOUND"):
        wh.rename_table(OLD, "nowhere.orders")
    with pytest.raises(TableNotFoundError, match="did you mean"):
        wh.rename_table("sales.order", "sales.other")
    for bad in ("sales.a$lake", "sales.größe", "a.b.c", "sales.a b"):
        with pytest.raises(InvalidNameError):
            wh.rename_table(OLD, bad)
        with pytest.raises(InvalidNameError):
            wh.rename_table(bad, "sales.other")
    assert wh.tables() == [NEW, OLD]


def test_the_name_of_a_renaming_that_got_no_further_can_be_taken(wh, table, store, world):
    """Its pointer is there, its record is not: the name means nothing."""
    path = TablePath("archive", "sold")
    assert names.put_name_pointer(store, path, names.resolve(store, path), table.uuid, world)
    assert not wh.exists(NEW)
    assert wh.tables() == [OLD]
    with pytest.raises(TableNotFoundError):
        wh.drop_table(NEW)
    wh.create_table(NEW, "id bigint")
    assert wh.tables() == [NEW, OLD]
    assert wh.table(OLD).uuid == table.uuid != wh.table(NEW).uuid


def test_a_dropped_or_deleted_table_leaves_its_new_name_free(wh, table, clock):
    wh.rename_table(OLD, NEW)
    wh.drop_table(NEW)
    wh.create_database("sales")
    assert wh.create_table(NEW, "id bigint").to_arrow().num_rows == 0
    for _ in range(3):
        clock.advance(25 * 3_600_000)
        wh.clean_dropped()
    assert wh.tables() == [NEW]


def test_a_renamed_table_is_not_taken_for_one_without_a_name(wh, table, clock):
    wh.rename_table(OLD, NEW)
    for _ in range(4):
        clock.advance(25 * 3_600_000)
        wh.clean_dropped()
    assert wh.table(NEW).to_arrow().num_rows == 1


def test_it_is_there_after_a_checkpoint(wh, table, other_process):
    wh.rename_table(OLD, NEW)
    state = wh.table(NEW).refresh()
    table.log.checkpoint(state)
    assert other_process().table(NEW).state == state
    other_process().rename_table(NEW, OLD)
    assert wh.table(OLD).uuid == table.uuid


class TestDatabases:
    def test_drop_needs_an_empty_one_or_cascade(self, wh, table, other_process):
        with pytest.raises(TableExistsError, match="DATABASE_NOT_EMPTY"):
            wh.drop_database("sales")
        wh.rename_table(OLD, NEW)
        assert wh.drop_database("sales")
        assert wh.databases() == ["archive"]
        assert wh.drop_database("archive", cascade=True)
        assert other_process().databases() == []
        assert not wh.drop_database("archive", if_exists=True)
        with pytest.raises(TableNotFoundError, match="DATABASE_NOT_FOUND"):
            wh.drop_database("archive")

    def test_a_dropped_one_is_made_again_by_a_table_in_it(self, wh):
        wh.create_database("sales", comment="sold")
        wh.drop_database("sales")
        wh.create_table(OLD, "id bigint")
        assert (wh.databases(), wh.tables("sales"), wh.database_comment("sales")) == (["sales"], [OLD], None)

    def test_a_table_made_while_it_is_dropped_wins(self, wh, other_process, monkeypatch):
        wh.create_database("sales", comment="sold")
        point = names.put_database_pointer

        def create_first(*args, **options):
            monkeypatch.setattr(names, "put_database_pointer", point)
            other_process().create_table(OLD, "id bigint")
            return point(*args, **options)

        monkeypatch.setattr(names, "put_database_pointer", create_first)
        with pytest.raises(TableExistsError, match="DATABASE_NOT_EMPTY"):
            wh.drop_database("sales")
        assert (wh.tables("sales"), wh.database_comment("sales")) == ([OLD], "sold")

    def test_databases_have_comments_that_change(self, wh):
        wh.create_database("sales", comment="it's `sold`")
        assert wh.database_comment("SALES") == "it's `sold`"
        wh.comment_database("sales", None)
        assert wh.database_comment("sales") is None
        with pytest.raises(TableNotFoundError):
            wh.comment_database("nope", "x")
