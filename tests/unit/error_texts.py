"""Every error text in the source: its condition, and its words with ``…`` where a value stands."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import streamhouse_spark
from streamhouse_spark import errors
from streamhouse_spark.kv.lmdb.environment import DamagedError

SOURCE = Path(streamhouse_spark.__file__).parent
ERRORS = {
    name: found("").condition
    for name, found in {**vars(errors), "DamagedError": DamagedError}.items()
    if isinstance(found, type) and issubclass(found, errors.StreamhouseError)
}
VALUE = "…"


@dataclass(frozen=True)
class ErrorText:
    where: str
    condition: str
    text: str

    def made(self, message: str) -> bool:
        """Whether the message can be this text, with values in it."""
        pattern = ".*".join(re.escape(part) for part in self.text.split(VALUE))
        return re.fullmatch(rf"{self.condition}: {pattern}", message, re.DOTALL) is not None


def _words(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part) for part in node.values)
    return VALUE


@functools.cache
def error_texts() -> tuple[ErrorText, ...]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                words = " ".join(_words(node.args[0]).split())
                named = [
                    k.value.value for k in node.keywords if k.arg == "condition" and isinstance(k.value, ast.Constant)
                ]
                condition = str(named[0]) if named else ERRORS[node.func.id]
                found.append(ErrorText(f"{path.relative_to(SOURCE)}:{node.lineno}", condition, words))
    return tuple(found)
