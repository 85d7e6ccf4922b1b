"""Query parameters of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request

from streamhouse_spark.core.option_parsing import find_nearest
from streamhouse_spark.errors import InvalidOptionError, quote


def parse_parameters(request: Request, allowed: Sequence[str]) -> Mapping[str, str]:
    """Return the parameters of a request.

    Raises `InvalidOptionError` for an unknown or repeated one: a misspelt parameter must not be ignored silently.
    """
    items = request.query_params.multi_items()
    for name, _ in items:
        if name not in allowed:
            near = find_nearest(name, allowed)
            hint = (
                f"did you mean {near}?" if near else f"there are {', '.join(allowed)}" if allowed else "it takes none"
            )
            raise InvalidOptionError(f"{request.method} {request.scope['path']} has no parameter {quote(name)}; {hint}")
    if len(items) > len(request.query_params):
        names = [name for name, _ in items]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidOptionError(f"the parameter {quote(twice)} is given {names.count(twice)} times; give it once")
    return request.query_params
