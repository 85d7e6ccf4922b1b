"""Parsers of option and property texts.

Every parser gets the name of the option, because its `InvalidOptionError` names the option, the found value and the
expected value.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Collection, Iterable
from typing import Final, NoReturn

from streamhouse_spark.errors import InvalidOptionError

_DURATION_MS: Final = {
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_SIZE_BYTES: Final = {
    **dict.fromkeys(("", "b", "bytes"), 1),
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib"), 1 << 40),
}
_NUMBER_WITH_UNIT: Final = re.compile(r"([0-9]{1,18})\s*([a-z]*)", re.IGNORECASE)
_INT64_MAX: Final = 2**63 - 1
_SECRET_VALUE: Final = re.compile(
    r"""
      \b(?:AKIA|ASIA)[0-9A-Z]{16}\b      # an AWS access key id
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY
    | (?<=[a-z0-9+.-])://[^/\s:@]*:[^/\s@]+@   # a URL with a password; only its end: long words take minutes
    | \b(?:password|passwd|secret|token|api[_-]?key)\s*[=:]\s*\S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|token|credential|access[-_.]?key|private[-_.]?key", re.IGNORECASE
)
_SECRET_PARTS: Final = re.compile(
    r"""
      \b(?:AKIA|ASIA)[0-9A-Z]{16}\b
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY.*
    | (?<=[a-z0-9+.-]://)[^/\s@]*(?=@)
    | (?<=[?&])(?:X-Amz-[a-z-]+|AWSAccessKeyId|Signature|sig)=[^&\s]*
    | \b(?:password|passwd|secret|token|api[_-]?key|bearer)(?:\s*[=:]\s*|\s+)\S+
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_REFERENCE: Final = re.compile(r"(?:env|file):\S+")


def parse_bool(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    reject(name, text, "true or false")


def parse_int(name: str, text: str, *, minimum: int, maximum: int = _INT64_MAX) -> int:
    stripped = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,19}", stripped) and minimum <= int(stripped) <= maximum:
        return int(stripped)
    limit = f"of at least {minimum}" if maximum == _INT64_MAX else f"from {minimum} to {maximum}"
    reject(name, text, f"a whole number {limit}")


def parse_duration_ms(name: str, text: str) -> int:
    """Parse a duration such as ``3min``, ``7d`` or ``30 s`` to milliseconds; a plain number is milliseconds."""
    value = _with_unit(text, _DURATION_MS)
    if value is None:
        reject(name, text, "a duration such as 500ms, 30s, 3min, 12h or 7d")
    return value


def parse_size_bytes(name: str, text: str) -> int:
    """Parse a size such as ``64mb`` or ``1g`` to bytes (base 1024); a plain number is bytes. At least 1."""
    value = _with_unit(text, _SIZE_BYTES)
    if not value:
        reject(name, text, "a size above zero such as 1048576, 512kb, 64mb or 1gb")
    return value


def parse_timestamp_ms(name: str, text: str, *, round_up: bool) -> int:
    """Parse milliseconds since 1970-01-01 UTC, or an ISO-8601 timestamp with a zone, to milliseconds.

    Commit times are whole milliseconds. Finer timestamps are rounded up for the bounds of a half-open range, and down
    for "as of".
    """
    stripped = text.strip()
    if re.fullmatch(r"-?[0-9]{1,18}", stripped):
        return int(stripped)
    expected = "milliseconds since 1970, or ISO-8601 with a zone such as 2026-01-31T12:00:00Z"
    try:
        moment = dt.datetime.fromisoformat(stripped)
    except ValueError:
        reject(name, text, expected)
    if moment.tzinfo is None:
        reject(name, text, f"{expected}: a time without a zone means another moment on another machine")
    micros = (moment - _EPOCH) // dt.timedelta(microseconds=1)
    return -(-micros // 1000) if round_up else micros // 1000


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse comma-separated names, without surrounding blanks. An empty text has no names.

    A name in backticks may contain commas and blanks; backticks in it are doubled.
    """
    pieces = _NAMES.findall(text) if text.strip() else []
    return tuple(quoted[1:-1].replace("``", "`") if quoted else plain.strip() for quoted, plain in pieces)


def join_names(names: Iterable[str]) -> str:
    """Join names to a text that `parse_names` can parse."""
    return ", ".join(f"`{name.replace('`', '``')}`" if _NEEDS_QUOTES.search(name) else name for name in names)


_NAMES: Final = re.compile(r"(?:^|(?<=,))(?:\s*(`(?:[^`]|``)*`)\s*(?=,|\Z)|([^,]*))")
_NEEDS_QUOTES: Final = re.compile(r"[,`]|^\s|\s\Z|^\Z")


def looks_like_secret(name: str, value: str) -> bool:
    """Return whether a value may be a credential. References (``env:NAME``, ``file:PATH``) are not."""
    if _REFERENCE.fullmatch(value.strip()):
        return False
    return bool(_SECRET_NAME.search(name) or _SECRET_VALUE.search(value))


def without_secrets(text: str) -> str:
    """Replace everything in a text that may be a credential by ``***``."""
    return _SECRET_PARTS.sub("***", text)


def find_nearest(name: str, names: Collection[str], similarity: float = 0.5) -> str | None:
    """Return the most similar of the names, case-insensitively; None if no name is similar enough."""
    folded = {candidate.casefold(): candidate for candidate in names}
    matches = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=similarity)
    return folded[matches[0]] if matches else None


def reject(name: str, text: str, expected: str) -> NoReturn:
    """Raise the error for an invalid value."""
    shown = "***" if looks_like_secret(name, text) else repr(text[:100])
    raise InvalidOptionError(f"{name} is {shown}, expected {expected}")


def _with_unit(text: str, units: dict[str, int]) -> int | None:
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    value = int(match[1]) * units[match[2].lower()]
    return value if value <= _INT64_MAX else None
