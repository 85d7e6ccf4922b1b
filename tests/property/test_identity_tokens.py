"""Any token of an identity provider, changed or made up: never a defect, never accepted, whatever its parts are."""

from __future__ import annotations

import base64
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from faults.sim import SimClock
from kit.hostile_input import FEW, MANY, damaged, json_values, profile, texts
from kit.serving import http_client
from streamhouse_spark import Warehouse
from streamhouse_spark.serve import auth
from streamhouse_spark.serve.acl import ALGORITHMS, ALL_TABLES, Access, Client, SigningKeys, TokenIssuer
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.serve.options import ServeOptions

EXAMPLES = [FEW, pytest.param(MANY, marks=pytest.mark.long)]
ISSUER, AUDIENCE = "https://id.example.com/realm", "streamhouse"
KEYS = {"RS256": rsa.generate_private_key(65537, 2048), "ES256": ec.generate_private_key(ec.SECP256R1())}
OTHER = {"RS256": rsa.generate_private_key(65537, 2048), "ES256": ec.generate_private_key(ec.SECP256R1())}
GROUPS = {"analysts": Client("analysts", readable=(ALL_TABLES,))}
PUBLIC = KEYS["RS256"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DEEP = "[" * 9_000
NESTED = b'{"a":' * 5_000


def jwks(_url):
    rs = {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEYS["RS256"].public_key())), "kid": "RS256", "use": "sig"}
    es = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEYS["ES256"].public_key())), "kid": "ES256", "use": "sig"}
    return json.dumps({"keys": [rs, es]}).encode()


ISSUING = TokenIssuer(ISSUER, AUDIENCE, GROUPS, SigningKeys(ISSUER, "https://id.example.com/keys", SimClock(), jwks))


def right():
    return {"iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 6_000, "sub": "ann", "groups": ["analysts"]}


TOKENS = [jwt.encode(right(), key, name, headers={"kid": name}) for name, key in KEYS.items()]


def word(part):
    text = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def signed(algorithm, header, claims, key):
    """Sign any header and claims, also those that the library would not sign."""
    start = f"{word(header)}.{word(claims)}"
    of = jwt.algorithms.get_default_algorithms()[algorithm]
    return f"{start}.{word(of.sign(start.encode(), key))}"


def is_the_same(token, other):
    """Whether two tokens say the same: base64 has several texts for some signatures."""
    one, two = token.split("."), other.split(".")
    decoded = [base64.urlsafe_b64decode(parts[-1] + "===") for parts in (one, two)]
    return one[:2] == two[:2] and decoded[0] == decoded[1]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_token_that_was_changed(examples):
    @profile(examples)
    @given(damaged(*(token.encode() for token in TOKENS)).map(lambda token: token.decode("latin-1")))
    def holds(token):
        if ISSUING.client_of(token) is not None:
            assert any(is_the_same(token, own) for own in TOKENS)

    assert all(ISSUING.client_of(token).readable == (ALL_TABLES,) for token in TOKENS)
    holds()


headers = st.dictionaries(
    st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5c", "cty"]),
    st.one_of(json_values, texts, st.sampled_from(["none", "HS256", "RS256", "ES256", "", *KEYS, *ALGORITHMS])),
    max_size=4,
)
odd_claims = st.dictionaries(
    st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "jti", "groups"]),
    st.one_of(json_values, st.sampled_from([[], {}, "1", -1, 10**400, True, None, ["analysts"], [AUDIENCE, 7]])),
    max_size=4,
)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_token_of_another_issuer_is_never_believed(examples):
    """By other keys, without any, and with the public key as if it were a secret; every header."""
    makers = [
        lambda head, body: signed("RS256", head, body, OTHER["RS256"]),
        lambda head, body: signed("ES256", head, body, OTHER["ES256"]),
        lambda head, body: f"{word(head)}.{word(body)}.",
        lambda head, body: signed("HS256", head, body, PUBLIC),
    ]

    @profile(examples)
    @given(headers, odd_claims, st.sampled_from(makers), st.sampled_from(list(KEYS)), st.booleans())
    def holds(header, claims, make, kid, is_plain):
        head = {"alg": kid, "kid": kid, "typ": "JWT"} | ({} if is_plain else header)
        assert ISSUING.client_of(make(head, right() | claims)) is None

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_odd_claims_of_the_provider_are_accepted_or_rejected(examples):
    @profile(examples)
    @given(headers, odd_claims, st.sampled_from(list(KEYS)))
    def holds(header, claims, kid):
        all_claims = right() | claims
        client = ISSUING.client_of(signed(kid, header | {"alg": kid, "kid": kid}, all_claims, KEYS[kid]))
        if client is None:
            return
        assert all_claims["iss"] == ISSUER
        assert AUDIENCE in all_claims["aud"]
        assert client.expires_s > time.time()
        assert client.writable == ()
        groups = all_claims["groups"]
        assert (isinstance(groups, list | str) and "analysts" in groups) or not client.readable
        assert client.name.isprintable()
        client.name.encode()

    holds()


@pytest.mark.parametrize(
    "token",
    [
        f"{word(DEEP.encode())}.{word({})}.x",
        f"{word(NESTED)}.e.e",
        signed("RS256", {"alg": "RS256", "kid": "RS256"}, DEEP.encode(), KEYS["RS256"]),
        "." * 5_000,
        "\x00.\x00.\x00",
        "é.é.é",
    ],
    ids=range(6),
)
def test_tokens_that_are_none(token):
    assert ISSUING.client_of(token) is None


@pytest.mark.parametrize(
    "exp", [float("inf"), float("nan"), [1], {}, 10**400, "9" * 400, str(10**12)], ids=lambda exp: str(exp)[:12]
)
def test_a_time_that_is_none(exp):
    token = signed("RS256", {"alg": "RS256", "kid": "RS256"}, right() | {"exp": exp}, KEYS["RS256"])
    assert ISSUING.client_of(token) is None


@pytest.mark.parametrize("examples", EXAMPLES)
def test_over_http_no_token_is_a_defect(examples, tmp_path_factory, monkeypatch):
    monkeypatch.setattr(auth, "_WRONG_TOKENS_PER_S", 1e9)
    warehouse = Warehouse(str(tmp_path_factory.mktemp("tokens") / "wh"))
    warehouse.create_table("s.t", "id BIGINT")
    client = http_client(make_app(warehouse, ServeOptions(lambda: Access(issuer=ISSUING))))
    made_up = texts.map(lambda text: text[:20_000].encode("utf-8", "ignore"))
    tokens = st.one_of(damaged(*(token.encode() for token in TOKENS)), made_up)

    @profile(examples)
    @given(st.sampled_from([b"Bearer ", b"bearer\t", b"", b"Basic "]), tokens)
    def holds(scheme, token):
        headers = {"Authorization": scheme + token.replace(b"\n", b"").replace(b"\r", b"")}
        answer = client.get("/api/v1/tables", headers=headers)
        assert answer.status_code in (200, 401), answer.text
        assert answer.status_code == 401 or is_the_same(token.decode().strip(), TOKENS[0]) or token.decode() in TOKENS

    holds()


def test_a_name_that_is_no_text_can_be_shown(tmp_path):
    warehouse = Warehouse(str(tmp_path / "wh"))
    warehouse.create_table("s.t", "id BIGINT")
    app = make_app(warehouse, ServeOptions(lambda: Access(issuer=ISSUING, requests_per_s=0.01)))
    token = signed("RS256", {"alg": "RS256", "kid": "RS256"}, right() | {"sub": "a\ud800\nb"}, KEYS["RS256"])
    client = http_client(app, headers={"Authorization": f"Bearer {token}"})
    assert [client.get("/api/v1/tables").status_code for _ in range(2)] == [200, 429]
