"""Authentication of a server: from an ``Authorization`` header to a client."""

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
    """The clients of a server by token, and its token issuer. Without either, everybody may do everything."""

    clients: Mapping[bytes, Client] = field(default_factory=dict, repr=False)
    """SHA-256 of a token → its client."""
    issuer: TokenIssuer | None = None
    requests_per_s: float | None = None
    """Requests per second that each client may send; None for no limit."""

    @property
    def is_open(self) -> bool:
        return not self.clients and self.issuer is None

    def client_of(self, authorization: str | None) -> Client | None:
        """Return the client of an ``Authorization`` header; None without a valid token.

        All tokens are compared in constant time, so that response times reveal nothing. May request the issuer's keys,
        so do not call it in an event loop. Raises `StorageError` if the issuer does not respond.
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
