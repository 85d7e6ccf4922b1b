"""Validation of a warehouse's location, settings and comments."""

from __future__ import annotations

import os
from collections.abc import Mapping

from streamhouse_spark.core.types import is_unicode
from streamhouse_spark.errors import InvalidOptionError, quote


def format_setting(value: object) -> str:
    """Return a setting as text: ``True`` and 5 become ``true`` and ``5``."""
    return value if isinstance(value, str) else str(value).lower()


def property_texts(path: object, properties: Mapping[str, object]) -> dict[str, str]:
    """Return the properties as texts. Raises `InvalidOptionError` for a value that Python cannot format."""
    try:
        return {str(key): str(value) for key, value in properties.items()}
    except ValueError as error:  # a number with thousands of digits, also in a list
        raise InvalidOptionError(
            f"table {path}: a property cannot be formatted as text ({error}); shorten it"
        ) from error


def check_warehouse(location: object, settings: object) -> None:
    """Raise `InvalidOptionError` for an invalid location or settings."""
    if not isinstance(location, str | os.PathLike):
        raise InvalidOptionError(f"the warehouse location is {quote(location)}, expected a path or a URL")
    text = os.fsdecode(location)
    if "\0" in text or not is_unicode(text) or len(text) > 4096 or max(map(len, text.split("/"))) > 255:
        raise InvalidOptionError(
            f"the warehouse location is {quote(text)}, expected a path or a URL of at most 4096 letters, "
            "255 between two slashes, all Unicode"
        )
    if not isinstance(settings, Mapping | None):
        raise InvalidOptionError(f"warehouse settings are a {type(settings).__name__}, expected a mapping of texts")


def check_comment(subject: str, comment: object) -> None:
    """Raise `InvalidOptionError` for a comment that is not a text."""
    if comment is not None and (not isinstance(comment, str) or not is_unicode(comment)):
        raise InvalidOptionError(f"the comment of {subject} is {quote(comment)}, expected a text; write it anew")
