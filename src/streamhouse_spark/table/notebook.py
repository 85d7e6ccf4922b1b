"""A table as HTML, which Jupyter and other notebooks show if it is the last value of a cell."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from streamhouse_spark.errors import count_of
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.table.status import TableOverview
from streamhouse_spark.table.system_views import Inspect
from streamhouse_spark.table_handle import TableHandle

COMMITS_SHOWN = 3


def format_table_html(table: TableHandle) -> str:
    """Return the columns, row count, lag and last commits of a table. Reads the state and a few records."""
    table.refresh()
    facts = TableOverview.of(table)
    columns = [(column.name, type_name(column.type), column.comment or "") for column in table.state.schema.columns]
    commits = Inspect(table).history(limit=COMMITS_SHOWN).select(["version", "timestamp", "operation"]).to_pylist()
    unit = "change" if facts.primary_key else "row"
    kind = f"primary key ({', '.join(facts.primary_key)})" if facts.primary_key else "log table"
    lake = (
        "no lake"
        if facts.lag_rows is None
        else f"{facts.lake_format} lake, {count_of(facts.lag_rows, unit)} not tiered yet"
    )
    summary = f"<b>{escape(table.name)}</b>: {kind}, {count_of(facts.rows, unit)} as of commit {facts.version}; {lake}"
    latest = [(str(c["version"]), f"{c['timestamp']:%Y-%m-%d %H:%M:%S}", c["operation"]) for c in reversed(commits)]
    return (
        f"<p>{summary}. Read it with <code>to_pandas()</code>, <code>to_polars()</code> or <code>scan()</code>.</p>"
        f"{_html_table(('column', 'type', 'comment'), columns)}{_html_table(('commit', 'time', 'operation'), latest)}"
    )


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
