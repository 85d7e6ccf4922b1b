"""What a notebook shows of a table."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kit.tables import tier


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "primary key"])
def test_a_notebook_shows_columns_rows_lag_and_the_last_commits(wh, is_keyed):
    key = ["id"] if is_keyed else []
    table = wh.create_table("d.t", "id BIGINT COMMENT 'a <b> & c', name STRING", primary_key=key)
    write = table.upsert if is_keyed else table.append
    write([{"id": 1}, {"id": 2}])
    tier(table)
    write([{"id": 3}])
    cells = Cells(table._repr_html_())
    text = "".join(cells.texts)
    assert ("primary key (id), 3 changes" if is_keyed else "log table, 3 rows") in text
    assert f"iceberg lake, 1 {'change' if is_keyed else 'row'} not tiered yet" in text
    assert {"id", "bigint", "a <b> & c", "name", "string", str(table.state.version)} <= set(cells.texts)


def test_a_table_without_a_lake_says_so(wh):
    table = wh.create_table("d.t", "id BIGINT", properties={"table.datalake.enabled": "false"})
    assert "no lake" in table._repr_html_()
