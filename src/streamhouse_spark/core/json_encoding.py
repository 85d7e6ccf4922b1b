"""Lossless JSON encoding of row values."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: Any) -> str:
    return json.dumps(plain_value(value), ensure_ascii=False, allow_nan=False)


def plain_value(value: Any) -> Any:
    """Convert a value to JSON types, without loss.

    Decimals become text, bytes base64, times ISO-8601. A map becomes an object if its keys are texts, else a list of
    pairs. A float that JSON lacks (NaN, infinities) becomes a text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case decimal.Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case dt.datetime():
            return value.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case Mapping():
            return {str(k): plain_value(v) for k, v in value.items()}
        case list() if value and all(isinstance(item, tuple) for item in value):
            if all(isinstance(key, str) for key, _ in value):
                return {key: plain_value(item) for key, item in value}
            return [[plain_value(key), plain_value(item)] for key, item in value]
        case list() | tuple():
            return [plain_value(item) for item in value]
    return str(value)
