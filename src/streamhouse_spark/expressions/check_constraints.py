"""CHECK constraints: named conditions, stored as the table's properties ``table.constraint.<name>``.

A row violates a constraint if the condition is false; null passes, as in SQL. Every writer checks rows in their stored
form before it stages them, and commits only if no other constraint was added since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.core.python_values import to_python
from streamhouse_spark.errors import ConstraintViolatedError, InvalidOptionError, quote
from streamhouse_spark.expressions.sql import SqlExpression, evaluate, parse_expression
from streamhouse_spark.schema.ddl import type_name
from streamhouse_spark.schema.table_schema import TableSchema

CONSTRAINT: Final = "table.constraint."
_NAME: Final = re.compile(r"[^\W\d][\w-]{0,127}")
_SHOWN_COLUMNS: Final = 20


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK constraint: its name, its SQL text, and the condition that is parsed against a schema."""

    name: str
    text: str
    condition: SqlExpression

    def find_violations(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return for each row whether the condition is false; null if the condition is null.

        A row for which a number in the condition overflows violates the constraint, because Spark rejects it too.
        """
        try:
            return self.is_false(rows)
        except pa.ArrowInvalid:
            if rows.num_rows == 1:
                return pa.array([True])
            middle = rows.num_rows // 2
            halves = (self.find_violations(half) for half in (rows.slice(0, middle), rows.slice(middle)))
            return pa.chunked_array(
                [chunk for half in halves for chunk in getattr(half, "chunks", [half])], type=pa.bool_()
            )

    def is_false(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return for each row whether the condition is false. Raises ``pa.ArrowInvalid`` if a number overflows."""
        return pc.invert(evaluate(self.condition, rows))


def parse_checks(properties: Mapping[str, str], schema: TableSchema) -> tuple[Check, ...]:
    """Parse the constraints from the properties of a table with this schema.

    Raises `InvalidOptionError` for names that differ at most in case, and for a text that is not a condition over the
    columns.
    """
    checks: dict[str, Check] = {}
    for key, text in properties.items():
        if not key.startswith(CONSTRAINT):
            continue
        name = check_constraint_name(key)
        if name.casefold() in checks:
            raise InvalidOptionError(
                f"constraint name is '{name}', and the table already has a constraint "
                f"'{checks[name.casefold()].name}'; choose another name"
            )
        condition = parse_expression(text, schema, f"constraint '{name}' CHECK")
        if condition.type != pa.bool_():
            raise InvalidOptionError(
                f"constraint '{name}' CHECK ({text}) has type {type_name(condition.type)}, expected a condition; "
                "compare the expression with a value"
            )
        checks[name.casefold()] = Check(name, text, condition)
    return tuple(checks.values())


def check_constraint_name(key: str) -> str:
    """Return the constraint name in a property key. Raises `InvalidOptionError` for an invalid name."""
    name = key.removeprefix(CONSTRAINT)
    if _NAME.fullmatch(name) is None:
        raise InvalidOptionError(
            f"constraint name is {quote(name)}, expected a letter and up to 127 letters, digits, _ and -"
        )
    return name


def find_constraint_property(properties: Mapping[str, str], name: str) -> str | None:
    """Return the property key of a constraint, whose name is case-insensitive, or None."""
    folded_key = (CONSTRAINT + name).casefold()
    return next((key for key in properties if key.casefold() == folded_key), None)


def require_constraints(checks: Iterable[Check], rows: pa.Table | pa.RecordBatch, table: str) -> None:
    """Raise `ConstraintViolatedError` if a condition is false for a row to be written."""
    if not rows.num_rows:
        return
    for check in checks:
        violations = ViolationCounter(check)
        violations.add(rows)
        violations.require_none(f"for {table}", "correct these rows or leave them out")


class ViolationCounter:
    """Counts the rows that violate a constraint, and retains the first of them for the error."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._count = 0
        self._num_rows = 0
        self._example = ""

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Check more rows."""
        self._num_rows += rows.num_rows
        violations = self._check.find_violations(rows)
        if not pc.any(violations).as_py():
            return
        self._count += pc.sum(violations).as_py()
        if not self._example:
            row = rows.slice(pc.index(violations, True).as_py(), 1)
            columns = self._check.condition.columns()
            names = [name for name in rows.schema.names if name in columns][:_SHOWN_COLUMNS]
            self._example = ", ".join(f"{name} = {quote(to_python(row.column(name)[0]))}" for name in names)
            try:
                self._check.is_false(row)
            except pa.ArrowInvalid as error:
                self._example += f" (a number is too large for its type: {error})"

    def require_none(self, where: str, remedy: str) -> None:
        """Raise `ConstraintViolatedError` with the number of violations and the first row that violates the constraint.

        ``where`` follows the number of rows in the error, and ``remedy`` ends it.
        """
        if self._count:
            raise ConstraintViolatedError(
                f"{self._count} of {self._num_rows} rows {where} violate constraint '{self._check.name}' "
                f"CHECK ({self._check.text}), such as {self._example}; nothing was written, {remedy}"
            )


def has_constraints(properties: Iterable[str]) -> bool:
    """Return whether the property names include constraints."""
    return any(name.startswith(CONSTRAINT) for name in properties)
