"""``tutorial``: the tour as a notebook, or in the terminal if JupyterLab is not installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import click

from streamhouse_spark.cli.session import Command, Failure, Session

_NOTEBOOK: Final = "streamhouse-tour.ipynb"
_ORDERS: Final = (
    '{"order_id": 1, "customer": "ann", "amount": 9.5}\n{"order_id": 2, "customer": "bob", "amount": 20.0}\n'
)
_PEOPLE: Final = '[{"name": "ann", "city": "Oslo"}, {"name": "bob", "city": "Rome"}]\n'
_FILES: Final = {
    "orders.jsonl": _ORDERS,
    "late.csv": "order_id,customer,amount\n3,eve,30.5\n",
    "people.json": _PEOPLE,
    "moved.json": '[{"name": "ann", "city": "Paris"}]\n',
}


class _Step(NamedTuple):
    text: str
    command: str


_STEPS: Final = (
    _Step(
        "A warehouse is a directory or a bucket, without a server. The first table creates it.",
        "create sales.orders --schema 'order_id BIGINT NOT NULL, customer STRING, amount DOUBLE'",
    ),
    _Step(
        "Rows go into the hot log. They are durable, and visible to every reader, when the command returns.",
        "append sales.orders orders.jsonl",
    ),
    _Step("A read returns the rows immediately.", "head sales.orders"),
    _Step("The lag is the number of rows that are not in the lake yet.", "ls"),
    _Step("Tiering moves them into an Iceberg table. Without --once, it runs as a service.", "tier --once"),
    _Step("More rows arrive.", "append sales.orders late.csv"),
    _Step("A read of the table returns lake and log as one snapshot: three rows.", "head sales.orders"),
    _Step(
        "The lake has two of them. DuckDB, Trino and Spark read it without this package.", "head 'sales.orders$lake'"
    ),
    _Step("Every change is a commit, which you can read or roll back to.", "history sales.orders"),
    _Step(
        "With a primary key, a table has one row per key.",
        "create crm.people --schema 'name STRING NOT NULL, city STRING' --primary-key name",
    ),
    _Step("Rows of a new key are inserted …", "append crm.people people.json"),
    _Step("… and rows of an existing key replace its row.", "append crm.people moved.json"),
    _Step("The changelog has every change in order, for streams and other systems.", "head 'crm.people$changelog'"),
)


@click.command(
    "tutorial",
    cls=Command,
    examples="""
streamhouse tutorial

# without a notebook
streamhouse tutorial --terminal
""",
)
@click.option("--terminal", is_flag=True, help="Take the tour in the terminal even if JupyterLab is installed.")
def tutorial(*, terminal: bool) -> None:
    """Take a tour of ten minutes, in a notebook or in the terminal.

    With JupyterLab (pip install "streamhouse-spark[notebook]"), the tour is copied to ./streamhouse-tour.ipynb, unless
    the file exists, and opened. Otherwise commands are explained and run in a temporary warehouse. No other warehouse
    is changed.
    """
    if not terminal and all(map(find_spec, ("jupyterlab", "matplotlib"))):
        _open_notebook()
    else:
        _run_in_terminal()


def _open_notebook() -> None:
    copy = Path(_NOTEBOOK)
    if not copy.exists():
        shutil.copyfile(notebook_path(), copy)
    click.echo(f"opening {copy} in JupyterLab; Ctrl-C ends it")
    done = subprocess.run([sys.executable, "-m", "jupyterlab", str(copy)], check=False)
    if done.returncode:
        raise Failure(f"JupyterLab ended with code {done.returncode}; run streamhouse tutorial --terminal")


def notebook_path() -> Path:
    """Return the path of the notebook in the installed package, or in a checkout."""
    packaged = Path(__file__).with_name("tour.ipynb")
    return packaged if packaged.exists() else Path(__file__).parents[3] / "examples/notebooks/01_ten_minute_tour.ipynb"


def _run_in_terminal() -> None:
    from streamhouse_spark.cli.app import streamhouse

    with tempfile.TemporaryDirectory(prefix="streamhouse-tour-") as folder, chdir(folder):
        for name, content in _FILES.items():
            Path(name).write_text(content, "utf-8")
        for number, step in enumerate(_STEPS, start=1):
            words = shlex.split(step.command)
            click.secho(f"\n{number}/{len(_STEPS)}  {step.text}", bold=True)
            for name in (word for word in words if word in _FILES):
                click.secho(f"$ cat {name}\n{_FILES[name]}", nl=False, dim=True)
            click.secho(f"$ streamhouse {step.command}", fg="green")
            if words[0] == "tier" and find_spec("pyiceberg") is None:
                click.echo('Tiering needs pyiceberg: pip install "streamhouse-spark[iceberg]". The tour ends here.')
                return
            click.pause("press Enter to run it … ")
            streamhouse.main(words, "streamhouse", standalone_mode=False, obj=Session("warehouse"))
    click.echo(
        "\nThat was the tour; its warehouse is deleted. Next:\n"
        "  streamhouse demo                   real flights through Spark, tiering and queries (extra demo)\n"
        "  streamhouse tutorial               the tour with live plots (extra notebook)\n"
        "  streamhouse create --help          each command has examples"
    )
