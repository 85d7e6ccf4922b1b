"""An identity provider of OpenID Connect, as that of a Kubernetes cluster: it signs tokens that others can check."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from storage.quiet_server import QuietServer

CLIENT = "streamhouse"
_KEY_ID = "one"
_DISCOVERY = "/.well-known/openid-configuration"
_KEYS = "/keys"


class IdentityProvider:
    """A key, and the documents by which others know it."""

    def __init__(self) -> None:
        self.port = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, seconds: float) -> str:
        """Return a token that ends in so many seconds."""
        now = time.time()
        claims = {"iss": self.url, "aud": CLIENT, "sub": "tests", "iat": int(now), "exp": int(now + seconds)}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": _KEY_ID})

    def document(self, path: str) -> dict[str, Any] | None:
        if path == _DISCOVERY:
            ways = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": _KEYS}
            return {"issuer": self.url, **{name: self.url + way for name, way in ways.items()}}
        if path == _KEYS:
            key = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
            return {"keys": [{**key, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]}
        return None

    @property
    def minio_settings(self) -> dict[str, str]:
        """The environment of a MinIO that takes the tokens, and gives their bearers a role that may read and write."""
        return {
            "MINIO_IDENTITY_OPENID_CONFIG_URL": self.url + _DISCOVERY,
            "MINIO_IDENTITY_OPENID_CLIENT_ID": CLIENT,
            "MINIO_IDENTITY_OPENID_ROLE_POLICY": "readwrite",
        }


def minio_role() -> str:
    """Return the name that MinIO gives the role of `CLIENT`."""
    digest = base64.urlsafe_b64encode(hashlib.sha1(CLIENT.encode()).digest())
    return f"arn:minio:iam:::role/{digest.rstrip(b'=').decode()}"


class _Handler(http.server.BaseHTTPRequestHandler):
    provider: IdentityProvider

    def do_GET(self) -> None:
        found = self.provider.document(self.path)
        body = json.dumps(found).encode()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def running_identity_provider() -> Iterator[IdentityProvider]:
    provider = IdentityProvider()
    with QuietServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": provider})) as listener:
        provider.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield provider
        finally:
            listener.shutdown()
            thread.join()
