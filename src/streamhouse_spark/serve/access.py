"""Rights over HTTP: a bearer token may read, or read and write."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from streamhouse_spark.errors import InvalidOptionError

Right = Literal["read", "write"]
_RIGHTS: Final = ("read", "write")
_TOKEN_CHARS_MIN: Final = 16


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens of a server, and what each may do. Without tokens, everybody who reaches the server may do all."""

    rights: Mapping[bytes, Right] = field(default_factory=dict, repr=False)

    @property
    def is_open(self) -> bool:
        return not self.rights

    def right_of(self, authorization: str | None) -> Right | None:
        """Return the right of an ``Authorization`` header; None for one that has no known token.

        Every token is compared, each in the same time whatever it is, so that answers tell nothing of tokens.
        """
        if self.is_open:
            return "write"
        scheme, _, given = (authorization or "").partition(" ")
        token = given.strip().encode() if scheme.casefold() == "bearer" else b""
        found: Right | None = None
        for known, right in self.rights.items():
            if hmac.compare_digest(known, token):
                found = right
        return found


def parse_tokens(path: str) -> Access:
    """Read a file of tokens: a line each, ``read TOKEN`` or ``write TOKEN``, which includes reading.

    Raises `InvalidOptionError` for a file that cannot be read, and lines of another form. No text shows a token.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidOptionError(f"--token-file {path} cannot be read: {error}; give a text file of tokens") from error
    rights: dict[bytes, Right] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or words[0] not in _RIGHTS or len(words[1]) < _TOKEN_CHARS_MIN:
            raise InvalidOptionError(
                f"--token-file {path}, line {number}: expected 'read TOKEN' or 'write TOKEN' with a token of at least "
                f"{_TOKEN_CHARS_MIN} characters; make one with: openssl rand -hex 32"
            )
        rights[words[1].encode()] = "write" if words[0] == "write" else "read"
    if not rights:
        raise InvalidOptionError(f"--token-file {path} has no token; write a line 'read TOKEN' or 'write TOKEN'")
    return Access(rights)
