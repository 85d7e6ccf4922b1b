"""Addresses that a server may listen at."""

from __future__ import annotations

import pytest

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.serve.access import Access, parse_tokens
from streamhouse_spark.serve.server import Listening

TOKENS = Access({b"0123456789abcdef": "read"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_this_machine_alone_is_safe(host):
    Listening(host).require_safe(Access())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_others_need_both(host):
    tls = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    for listening, access in [
        (Listening(host), Access()),
        (Listening(host), TOKENS),
        (Listening(host, **tls), Access()),
    ]:
        with pytest.raises(InvalidOptionError, match="--insecure"):
            listening.require_safe(access)
    Listening(host, **tls).require_safe(TOKENS)
    Listening(host, allows_insecure=True).require_safe(Access())


@pytest.mark.parametrize("text", ["", "# nothing\n", "read short\n", "admin 0123456789abcdef\n", "0123456789abcdef\n"])
def test_tokens_that_cannot_be(tmp_path, text):
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(InvalidOptionError) as error:
        parse_tokens(str(file))
    assert "0123456789abcdef" not in str(error.value)


def test_each_token_has_its_right():
    access = Access({b"0123456789abcdef": "read", b"fedcba9876543210": "write"})
    assert access.right_of("Bearer 0123456789abcdef") == "read"
    assert access.right_of("bearer  fedcba9876543210 ") == "write"
    for wrong in (None, "", "Bearer", "Bearer x", "Basic fedcba9876543210", "fedcba9876543210"):
        assert access.right_of(wrong) is None
    assert Access().right_of(None) == "write"
