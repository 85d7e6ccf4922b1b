"""The tables of the reference pages that are generated from the code: commands, options, procedures, metrics.

`make reference` writes them into their pages, between ``<!-- generated: name -->`` and ``<!-- /generated -->``.
`tests/project/test_reference_tables.py` compares them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.config.spark_options import OPTIONS
from streamhouse_spark.datasource.catalog.procedures.procedures import PROCEDURES
from streamhouse_spark.schema.json_values import FORMS

ROOT: Final = Path(__file__).parents[1]
MODES: Final = ("read", "readStream", "write", "writeStream")
EVERY_COMMAND: Final = {"warehouse", "output", "setting", "help"}
"""Options that all commands have."""

Row = tuple[str, ...]


def commands() -> Iterator[Row]:
    """Yield each command with its arguments, its summary and its own options."""
    yield "`streamhouse`", "effect", "options"
    for name, command in streamhouse.commands.items():
        arguments = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
        own = [p for p in command.params if isinstance(p, click.Option) and p.name not in EVERY_COMMAND]
        options = [f"`{max(p.opts, key=len)}`" for p in own if not p.hidden]
        summary = command.get_short_help_str(200).rstrip(".")
        yield code(" ".join([name, *arguments])), summary, ", ".join(options)


def options() -> Iterator[Row]:
    """Yield each option of Spark reads and writes with the modes that have it."""
    yield "option", "in", "meaning"
    for option in OPTIONS:
        yield code(option.name), "all" if option.modes == MODES else ", ".join(option.modes), option.meaning


def procedures() -> Iterator[Row]:
    """Yield each procedure with its parameters; a parameter with a default may be omitted."""
    yield "procedure", "parameters", "effect"
    for name, procedure in PROCEDURES.items():
        parameters = [
            code(p.name) if p.default is None else f"`{p.name}` ({p.type.upper()}, {p.default})"
            for p in procedure.parameters
        ]
        yield code(name), ", ".join(parameters), procedure.description


def metrics() -> Iterator[Row]:
    """Yield each metric with its text, as the sources define them."""
    yield "metric", "meaning"
    found: dict[str, str] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        found.update(defined_metrics(ast.parse(path.read_text("utf-8"))))
    for name, text in sorted(found.items()):
        yield code(name), text.rstrip(".")


def defined_metrics(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of metrics: items of a dict, or the first arguments of a call."""
    for node in ast.walk(module):
        pairs: Iterable[tuple[ast.expr | None, list[ast.expr]]] = ()
        if isinstance(node, ast.Dict):
            pairs = ((k, v.elts) for k, v in zip(node.keys, node.values, strict=True) if isinstance(v, ast.Tuple))
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            pairs = [(node.args[0], node.args[1:2])]
        for key, values in pairs:
            if isinstance(key, ast.Constant) and str(key.value).startswith("streamhouse_"):
                texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
                yield from ((str(key.value), text) for text in texts if text.endswith("."))


def json_forms() -> Iterator[Row]:
    """Yield each type with its form in JSON."""
    yield "type", "in JSON"
    for form in FORMS:
        yield form.type_name, form.json_form


TABLES: Final[dict[tuple[str, str], Callable[[], Iterator[Row]]]] = {
    ("docs/reference/command-line.md", "commands"): commands,
    ("docs/reference/spark-options.md", "options"): options,
    ("docs/reference/procedures.md", "procedures"): procedures,
    ("docs/reference/metrics.md", "metrics"): metrics,
    ("docs/guides/write.md", "json"): json_forms,
}


def code(text: str) -> str:
    return f"`{text}`"


def as_markdown(rows: Iterator[Row]) -> str:
    header = next(rows)
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def with_tables(page: str, text: str) -> str:
    """Return the text of a page with its generated tables replaced."""
    for (path, name), rows in TABLES.items():
        if path == page:
            before, marker, rest = text.partition(f"<!-- generated: {name} -->\n\n")
            _, end, after = rest.partition("\n\n<!-- /generated -->")
            assert marker, f"{page} has no table {name}"
            text = f"{before}{marker}{as_markdown(rows())}{end}{after}"
    return text


if __name__ == "__main__":
    for page in dict.fromkeys(path for path, _ in TABLES):
        path = ROOT / page
        path.write_text(with_tables(page, path.read_text("utf-8")), "utf-8")
