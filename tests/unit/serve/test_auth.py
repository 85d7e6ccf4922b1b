"""Tokens of an identity provider: a real signature, issuer, audience and times, or nobody."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from streamhouse_spark import StorageError
from streamhouse_spark.serve.acl import ALL_TABLES, Client, SigningKeys, TokenIssuer

ISSUER, AUDIENCE = "https://id.example.com/realm", "streamhouse"
FIRST = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SECOND = ec.generate_private_key(ec.SECP256R1())
GROUPS = {
    "analysts": Client("analysts", readable=(ALL_TABLES,)),
    "loaders": Client("loaders", writable=(ALL_TABLES,), requests_per_s=9.0),
}


def jwk(key, name):
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": name, "use": "sig"}


class Provider:
    """Answers as a provider does, and counts the questions."""

    def __init__(self):
        self.keys = {"first": FIRST}
        self.asked = []
        self.is_away = False

    def fetch(self, url):
        self.asked.append(url)
        if self.is_away:
            raise OSError("no route")
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": ISSUER, "jwks_uri": "https://id.example.com/keys"}).encode()
        return json.dumps({"keys": [jwk(key, name) for name, key in self.keys.items()]}).encode()


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def issuer(provider, clock):
    keys = SigningKeys(ISSUER, None, clock, provider.fetch)
    return TokenIssuer(ISSUER, AUDIENCE, GROUPS, keys)


def token(key=FIRST, kid="first", algorithm="RS256", **changed):
    claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600, "sub": "ann", "groups": ["analysts"], **changed}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid} if kid else None)


def test_a_person_has_the_rights_of_all_groups(issuer, provider):
    ann = issuer.client_of(token(groups=["analysts", "loaders", "other", 7]))
    assert (ann.name, ann.readable, ann.writable, ann.requests_per_s) == ("oidc:ann", (ALL_TABLES,), (ALL_TABLES,), 9.0)
    assert issuer.client_of(token(groups="loaders other")).writable == (ALL_TABLES,)
    for nothing in ([], None, 7, {"analysts": 1}):
        client = issuer.client_of(token(groups=nothing))
        assert (client.readable, client.writable) == ((), ())
    assert len(provider.asked) == 2


def test_names_and_groups_of_other_claims(provider, clock):
    keys = SigningKeys(ISSUER, "https://id.example.com/keys", clock, provider.fetch)
    issuer = TokenIssuer(ISSUER, AUDIENCE, GROUPS, keys, groups_claim="roles", name_claim="email")
    ann = issuer.client_of(token(roles=["analysts"], email="ann@example.com"))
    assert (ann.name, ann.readable) == ("oidc:ann@example.com", (ALL_TABLES,))
    assert provider.asked == ["https://id.example.com/keys"]


def forged(algorithm, signature=b""):
    parts = [{"alg": algorithm, "kid": "first"}, {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 600}]
    words = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*words, signature]).decode()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: "no token",
        lambda: "a.b.c",
        lambda: token(iss="https://id.example.org"),
        lambda: token(aud="another service"),
        lambda: token(exp=time.time() - 300),
        lambda: token(nbf=time.time() + 300),
        lambda: token(exp=None),
        lambda: token(iss=None),
        lambda: token(aud=None),
        lambda: token(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        lambda: token(SECOND, algorithm="ES256"),
        lambda: token("a secret of the provider and the server", algorithm="HS256"),
        lambda: forged("none"),
        lambda: forged("RS256", b"c2lnbmF0dXJl"),
    ],
)
def test_tokens_that_are_nobodys(issuer, wrong):
    assert issuer.client_of(token()) is not None
    assert issuer.client_of(wrong()) is None


def test_a_new_key_is_fetched_and_an_old_one_ends(issuer, provider, clock):
    assert issuer.client_of(token()) is not None
    provider.keys = {"second": SECOND}
    renewed = token(SECOND, "second", "ES256")
    assert issuer.client_of(renewed) is None, "the provider was asked a moment ago"
    clock.sleep_ms(60_000)
    assert issuer.client_of(renewed) is not None
    assert issuer.client_of(token()) is None
    asked = len(provider.asked)
    for number in range(50):
        assert issuer.client_of(token(kid=f"made up {number}")) is None
    assert len(provider.asked) == asked, "made-up keys may not be used to ask the provider"


def test_keys_are_looked_at_again_after_an_hour(issuer, provider, clock):
    assert issuer.client_of(token()) is not None
    provider.keys = {"second": SECOND}
    clock.sleep_ms(3_599_000)
    assert issuer.client_of(token()) is not None
    clock.sleep_ms(2_000)
    assert issuer.client_of(token()) is None


def test_a_provider_that_is_away(issuer, provider, clock):
    provider.is_away = True
    with pytest.raises(StorageError, match="IDENTITY_PROVIDER_UNAVAILABLE"):
        issuer.client_of(token())
    provider.is_away = False
    clock.sleep_ms(60_000)
    assert issuer.client_of(token()) is not None
    provider.is_away = True
    clock.sleep_ms(4_000_000)
    assert issuer.client_of(token()) is not None, "keys that are known go on"


def test_a_provider_of_another_name_is_not_believed(provider, clock):
    keys = SigningKeys("https://id.example.com/other", None, clock, provider.fetch)
    issuer = TokenIssuer("https://id.example.com/other", AUDIENCE, GROUPS, keys)
    with pytest.raises(StorageError, match="the issuer is"):
        issuer.client_of(token(iss="https://id.example.com/other"))


def test_a_token_need_not_name_the_only_key(issuer, provider, clock):
    assert issuer.client_of(token(kid=None)) is not None
    provider.keys = {"first": FIRST, "second": SECOND}
    clock.sleep_ms(4_000_000)
    assert issuer.client_of(token()) is not None
    assert issuer.client_of(token(kid=None)) is None


def test_keys_come_over_http(provider, clock):
    """A server of the test's own stands for the provider: discovery, then its keys."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            documents = {
                "/realm/.well-known/openid-configuration": {"issuer": url, "jwks_uri": f"{url}/keys"},
                "/realm/keys": {"keys": [jwk(FIRST, "first")]},
            }
            self.send_response(200 if self.path in documents else 404)
            self.end_headers()
            self.wfile.write(json.dumps(documents.get(self.path, {})).encode())

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        url = f"http://127.0.0.1:{server.server_port}/realm"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        issuer = TokenIssuer(url, AUDIENCE, GROUPS, SigningKeys(url, None, clock))
        assert issuer.client_of(token(iss=url)).name == "oidc:ann"
        with pytest.raises(StorageError, match="404"):
            TokenIssuer(url, AUDIENCE, GROUPS, SigningKeys(url, f"{url}/absent", clock)).client_of(token(iss=url))
        server.shutdown()
