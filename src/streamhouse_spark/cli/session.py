"""Common parts of all commands: shared options, help with examples, and errors as one line with an exit code.

Exit codes: 0 success; 1 failure, with the reason on stderr; 2 usage error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from streamhouse_spark.config.spark_options import WAREHOUSE_VARIABLE
from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.errors import InvalidOptionError, StreamhouseError, quote, truncate_message

if TYPE_CHECKING:
    from streamhouse_spark.cli.output import Output
    from streamhouse_spark.table.table import Table
    from streamhouse_spark.warehouse.table_batch import TableBatch
    from streamhouse_spark.warehouse.warehouse import Warehouse

FORMATS: Final = ("text", "json")


@dataclass(slots=True)
class Session:
    """The shared options of one call."""

    location: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    """May contain credentials: never print it."""
    format: str = "text"

    @property
    def output(self) -> Output:
        from streamhouse_spark.cli.output import Output

        return Output(as_json=self.format == "json")

    @property
    def warehouse_location(self) -> str:
        location = self.location or os.environ.get(WAREHOUSE_VARIABLE, "")
        if not location.strip():
            raise click.UsageError(
                f"found no warehouse; add --warehouse DIRECTORY-OR-URL (-w), or set {WAREHOUSE_VARIABLE}"
            )
        return location

    def open_table(self, name: str, action: str) -> Table:
        """Open a table for an action that its system tables and branches do not support."""
        parse_table_name(name).require_table(action)
        return self.warehouse.table(name)

    @property
    def warehouse(self) -> Warehouse:
        from streamhouse_spark.core.clock import World, system_author
        from streamhouse_spark.warehouse.warehouse import Warehouse

        return Warehouse(self.warehouse_location, self.settings, world=World(author=system_author("cli")))


class Failure(click.ClickException):
    """A failure of a command: one line on stderr, exit code 1."""

    exit_code = 1

    def show(self, file: Any = None) -> None:
        click.secho(self.message, file=file, err=file is None, fg="red")


def fail_for(opened: TableBatch) -> None:
    """Raise `Failure` if the command failed for a table."""
    if opened.failed:
        raise Failure("; ".join(f"{name}: {error}" for name, error in opened.failed.items()))


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on stderr, unless ``yes`` is set. Raises `click.Abort`."""
    if not yes and not click.confirm(question, err=True):
        raise click.Abort


class _TableName(click.types.StringParamType):
    """The name of a table, which the shell completes from the tables of the warehouse."""

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            tables = (ctx.find_object(Session) or Session()).warehouse.tables()
        except (StreamhouseError, click.ClickException):
            return []  # a shell cannot show errors
        return [CompletionItem(table) for table in tables if table.startswith(incomplete)]


_TABLE_ARGUMENTS: Final = ("table", "tables", "views", "source")


class Command(click.Command):
    """A command with the shared options, completion of table names, and a section of examples in its help."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._examples = examples
        for param in self.params:
            if isinstance(param, click.Argument) and param.name in _TABLE_ARGUMENTS:
                param.type = _TableName()
        self.params = [*self.params, *_shared_options()]

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(formatter, self._examples)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StreamhouseError as error:
            raise Failure(_name_options(str(error), self)) from error


_ARGUMENT: Final = re.compile(r"(?<![\w.-])(?P<name>[a-z_]+)=(?:True\b|'(?P<value>[^']*)'|\[\.\.\.\]|\.\.\.|(?!['\w]))")
"""A Python argument in an error, such as ``if_not_exists=True``, ``to=`` or ``format='paimon'``."""


def _name_options(text: str, command: click.Command) -> str:
    """Replace Python arguments in an error by the equivalent options of the command."""
    options = {option.name: max(option.opts, key=len) for option in command.params if isinstance(option, click.Option)}

    def option_of(match: re.Match[str]) -> str:
        option = options.get(match["name"])
        return match[0] if option is None else " ".join(filter(None, [option, match["value"]]))

    return _ARGUMENT.sub(option_of, text)


@contextmanager
def shorten_usage_errors() -> Iterator[None]:
    """Shorten usage errors, which contain the values of the user, to the maximum length of `StreamhouseError`."""
    try:
        yield
    except click.UsageError as error:
        raise click.UsageError(truncate_message(error.format_message()), error.ctx) from error


def require_text(ctx: click.Context, words: Sequence[str]) -> None:
    """Raise `click.UsageError` for a word that is not UTF-8, which names, values and output cannot contain."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{quote(word)} is not UTF-8; encode it as UTF-8", ctx) from None


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """Write examples without wrapping, so that they can be copied."""
    if examples:
        formatter.write("\nExamples:\n")
        for line in examples.strip("\n").splitlines():
            formatter.write(f"  {line}\n" if line else "\n")


def _shared_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["-w", "--warehouse"],
            metavar="DIR|URL",
            help=f"The warehouse: a directory, file:// or s3:// URL; else the variable {WAREHOUSE_VARIABLE}.",
            expose_value=False,
            callback=_take_warehouse,
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(FORMATS),
            help="text (the default), or json: JSON Lines for rows, one document otherwise.",
            expose_value=False,
            callback=_take_format,
        ),
        click.Option(
            ["--setting"],
            multiple=True,
            metavar="KEY=VALUE",
            help="A storage or lake setting, such as s3.endpoint=http://localhost:9000. May be given several times.",
            expose_value=False,
            callback=_take_settings,
        ),
    ]


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the shared options to the group, so that they may also precede the command."""
    function.__dict__.setdefault("__click_params__", []).extend(reversed(_shared_options()))
    return function


def _take_warehouse(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).location = value


def _take_format(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).format = value


def _take_settings(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> None:
    ctx.ensure_object(Session).settings.update(parse_pairs(value, param))


def parse_pairs(texts: Sequence[str], param: click.Parameter) -> Mapping[str, str]:
    """Parse ``KEY=VALUE`` strings. Raises `click.BadParameter` without the value, which may be a credential."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"expected KEY=VALUE, found {key[:60]!r} without a value", param=param)
        pairs[key.strip()] = value.strip()
    return pairs


def parse_pair_options(_ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Mapping[str, str]:
    """Callback of ``KEY=VALUE`` options."""
    return parse_pairs(value, param)


def parse_value_arguments(_ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> Mapping[str, str]:
    """Callback of ``COLUMN=VALUE`` arguments, which retain spaces in values. Columns must be unique."""
    names = [text.partition("=")[0].strip() for text in value]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name[:60]!r} occurs twice; name it once", param=param)
    return dict(zip(parse_pairs(value, param), (text.partition("=")[2] for text in value), strict=True))


TABLE: Final = click.argument("table")
YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
DRY_RUN: Final = click.option("--dry-run", is_flag=True, help="Only show what would be done.")


def parse_name_options(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> list[str]:
    """Callback of options with names that are separated by commas, or in several options."""
    return [name.strip() for text in value for name in text.split(",") if name.strip()]


def parse_field_options(_ctx: click.Context, _param: click.Parameter, value: Sequence[str]) -> list[str]:
    """Callback of options with partition fields, such as ``truncate(4, a),b``."""
    from streamhouse_spark.schema.partitioning import split_fields

    return [field for text in value for field in split_fields(text) if field]


_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def pairs_option(*declarations: str, metavar: str, text: str) -> _Decorator:
    """Return an option with ``KEY=VALUE`` values, which may be given several times."""
    text = f"{text} May be given several times."
    return click.option(*declarations, metavar=metavar, multiple=True, callback=parse_pair_options, help=text)


def names_option(*declarations: str, metavar: str, text: str) -> _Decorator:
    """Return an option with names, which are separated by commas or given in several options."""
    return click.option(*declarations, metavar=metavar, multiple=True, callback=parse_name_options, help=text)


def parse_duration_option(_ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of options with a duration such as ``24h``."""
    from streamhouse_spark.core.option_parsing import parse_duration_ms

    if value is None:
        return None
    try:
        return parse_duration_ms(param.opts[0], value)
    except InvalidOptionError as error:
        raise click.BadParameter(str(error), param=param) from error
