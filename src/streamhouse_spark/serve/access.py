"""The tokens of a server: from an ``Authorization`` header to a client."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import field

from streamhouse_spark.core.lazy_dataclass import dataclass
from streamhouse_spark.serve.oidc import TokenIssuer
from streamhouse_spark.serve.rights import ANONYMOUS, Client


@dataclass(frozen=True, slots=True)
class Access:
    """The clients of a server by their tokens, and who else gives tokens. Without either, everybody may do all."""

    clients: Mapping[bytes, Client] = field(default_factory=dict, repr=False)
    """SHA-256 of a token → its client."""
    issuer: TokenIssuer | None = None
    requests_per_s: float | None = None
    """Requests a second that each client may send; None for no limit."""

    @property
    def is_open(self) -> bool:
        return not self.clients and self.issuer is None

    def client_of(self, authorization: str | None) -> Client | None:
        """Return the client of an ``Authorization`` header; None for one that has no valid token.

        Every token is compared, each in the same time whatever it is, so that answers tell nothing of tokens. May ask
        the issuer for its keys, so it is not for an event loop. Raises `StorageError` where the issuer does not answer.
        """
        if self.is_open:
            return ANONYMOUS
        scheme, _, credentials = (authorization or "").partition(" ")
        token = credentials.strip() if scheme.casefold() == "bearer" else ""
        if not token:
            return None
        digest = digest_of(token)
        match: Client | None = None
        for token_digest, client in self.clients.items():
            if hmac.compare_digest(token_digest, digest):
                match = client
        if match is None and self.issuer is not None:
            match = self.issuer.client_of(token)
        return match


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
