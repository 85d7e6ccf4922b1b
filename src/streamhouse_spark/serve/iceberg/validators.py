"""Cache validators: whether a client has the current document already (RFC 9110, ``If-None-Match``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
_LIST: Final = re.compile(rf"[ \t,]*(?:{_TAG.pattern}[ \t]*(?:,[ \t,]*|$))+")


def is_current(if_none_match: Sequence[str], etag: str) -> bool:
    """Return whether the header's values name the document of an entity tag.

    ``*`` names any document. Tags are compared weakly, as is done for reads: ``"a"`` names ``W/"a"``. A malformed value
    names none.
    """
    value = ",".join(if_none_match).strip()
    if value == "*":
        return True
    return _LIST.fullmatch(value) is not None and etag.removeprefix("W/") in _TAG.findall(value)
