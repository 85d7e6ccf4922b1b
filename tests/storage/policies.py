"""Policies of an S3 store, evaluated as Amazon does for what the tests need, and refused where they need more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any


def allows(policy: str, action: str, resource: str, context: Mapping[str, str]) -> bool:
    """Tell whether a policy allows a request: one statement does, and none denies it."""
    document = json.loads(policy)
    assert document["Version"] == "2012-10-17"
    effects = [s["Effect"] for s in document["Statement"] if _is_about(s, action, resource, context)]
    assert set(effects) <= {"Allow", "Deny"}
    return "Allow" in effects and "Deny" not in effects


def _is_about(statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
    unknown = set(statement) - {"Sid", "Effect", "Action", "Resource", "Condition"}
    assert not unknown, f"the tests do not know {unknown}"
    return (
        _matches(_several(statement["Action"]), action)
        and _matches(_several(statement["Resource"]), resource)
        and all(_holds(how, of, context) for how, of in statement.get("Condition", {}).items())
    )


def _holds(how: str, of: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    assert how in ("StringLike", "StringEquals"), how
    for name, wanted in of.items():
        assert name == "s3:prefix", name
        if name not in context:
            return False
        values = _several(wanted)
        if not (_matches(values, context[name]) if how == "StringLike" else context[name] in values):
            return False
    return True


def _several(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _matches(patterns: Iterable[str], text: str) -> bool:
    for pattern in patterns:
        assert not set(pattern) & set("[]$"), f"{pattern}: means something else here than in a policy"
    return any(fnmatchcase(text, pattern) for pattern in patterns)
