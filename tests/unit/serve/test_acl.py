"""Files of tokens and rights: each client has what its lines say, on tables and their branches."""

from __future__ import annotations

import hashlib

import pytest

from doc_pages import ROOT
from faults.sim import SimClock
from streamhouse_spark import InvalidNameError, InvalidOptionError
from streamhouse_spark.core.warehouse_layout import parse_table_name
from streamhouse_spark.serve import acl
from streamhouse_spark.serve.acl import (
    ALL_TABLES,
    ANONYMOUS,
    Access,
    Client,
    ReloadingAcl,
    parse_access,
    parse_pattern,
    parse_tokens,
)

SHOP, BOARD = "shop-0123456789abcdef", "board-fedcba9876543210"


def digest(token):
    return hashlib.sha256(token.encode()).hexdigest()


RIGHTS = f"""
requests_per_second = 50

[clients.shop]
token_sha256 = "{digest(SHOP)}"
write = ["sales.*"]
read = ["ops.events"]
requests_per_second = 500

[clients.board]
token_sha256 = "{digest(BOARD)}"
read = ["*"]
"""


def path(name):
    return parse_table_name(name).path


@pytest.mark.parametrize("text", ["", "# nothing\n", "read short\n", "admin 0123456789abcdef\n", "0123456789abcdef\n"])
def test_tokens_that_cannot_be(tmp_path, text):
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(InvalidOptionError) as error:
        parse_tokens(str(file))
    assert "0123456789abcdef" not in str(error.value)


def test_each_token_has_its_right(tmp_path):
    (tmp_path / "tokens").write_text("read 0123456789abcdef\n# more\nwrite fedcba9876543210\n")
    access = parse_tokens(str(tmp_path / "tokens"))
    reader = access.client_of("Bearer 0123456789abcdef")
    assert (reader.readable, reader.writable) == ((ALL_TABLES,), ())
    assert access.client_of("bearer  fedcba9876543210 ").writable == (ALL_TABLES,)
    for wrong in (None, "", "Bearer", "Bearer x", "Basic fedcba9876543210", "fedcba9876543210"):
        assert access.client_of(wrong) is None
    assert Access().client_of(None) is ANONYMOUS


def test_clients_have_the_rights_of_their_lines(tmp_path):
    (tmp_path / "rights.toml").write_text(RIGHTS)
    access = parse_access(str(tmp_path / "rights.toml"), SimClock())
    shop, board = access.client_of(f"Bearer {SHOP}"), access.client_of(f"Bearer {BOARD}")
    may = {
        (client.name, right, name)
        for client in (shop, board)
        for right in ("read", "write")
        for name in ("sales.orders", "ops.events", "ops.other", "salesx.orders", "default.sales")
        if client.can(right, path(name))
    }
    assert may == {
        *(("board", "read", n) for n in ("sales.orders", "ops.events", "ops.other", "salesx.orders", "default.sales")),
        ("shop", "write", "sales.orders"),
        ("shop", "read", "sales.orders"),
        ("shop", "read", "ops.events"),
    }
    assert (shop.requests_per_s, board.requests_per_s, access.requests_per_s) == (500.0, None, 50.0)
    assert [client.can_see_database("ops") for client in (shop, board, Client("none"))] == [True, True, False]
    assert not access.is_open


def test_the_access_file_of_the_guide_is_valid(tmp_path):
    guide = (ROOT / "docs/guides/serve.md").read_text("utf-8")
    text = guide.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "rights.toml").write_text(text.replace("5a0f…", digest(SHOP)))
    access = parse_access(str(tmp_path / "rights.toml"), SimClock())
    client = access.client_of(f"Bearer {SHOP}")
    assert (client.name, client.requests_per_s, access.requests_per_s) == ("checkout", 1000.0, 200.0)
    assert access.issuer.groups["analysts"].can_read_all()
    assert access.issuer.name_claim == "email"


def test_patterns_cover_the_tables_that_they_name():
    assert parse_pattern("Sales.Orders").covers(path("sales.orders"))
    assert parse_pattern("events").covers(path("default.events"))
    for wrong in ("", "sales.", ".orders", "sales.or*", "a.b.c", "sales.orders$lake", "**", "*.orders"):
        with pytest.raises(InvalidNameError):
            parse_pattern(wrong)


SECTION = f"[clients.shop]\ntoken_sha256 = '{digest(SHOP)}'"
PROVIDER = "[oidc]\nissuer = 'https://id.example.com'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found neither a client nor"),
        ("[clients.shop", "is not valid TOML"),
        ("[client.shop]\n", "did you mean clients"),
        ("clients = 3", r"write \[clients.<name>\]"),
        ("[clients.shop]\nread = ['*']", "requires token_sha256"),
        ("[clients.shop]\ntoken = 'secret-secret-secret'", "'token' is unknown"),
        ("[clients.shop]\ntoken_sha256 = 'secret-secret-secret'", "64 hexadecimal digits"),
        (f"{SECTION}\nwirte = ['*']", "did you mean write"),
        (f"{SECTION}\nread = '*'", "not a list of tables"),
        (
            f"{SECTION}\nread = ['sales.or*']",
            "read: .*expected '\\*'",
        ),
        (f"{SECTION}\nrequests_per_second = 0", "a number above 0"),
        (f"requests_per_second = true\n{SECTION}", "a number above 0"),
        (
            f"[clients.a]\ntoken_sha256 = '{digest(SHOP)}'\n[clients.b]\ntoken_sha256 = '{digest(SHOP)}'",
            "another client",
        ),
        ("[groups.analysts]\nread = ['*']", "missing"),
        ("[clients.'oidc:ann']\nread = ['*']", "are reserved"),
        ("oidc = 1", r"write \[oidc\]"),
        (PROVIDER, "requires audience"),
        ("[oidc]\nissuer = 7\naudience = 'sh'", "expected a string"),
        ("[oidc]\nissuer = 'http://id.example.com'\naudience = 'sh'", "expected https"),
        (f"{PROVIDER}\naudience = 'sh'\njwks_url = 'file:///etc/keys'", "expected https"),
    ],
)
def test_files_of_rights_that_cannot_be(tmp_path, text, says):
    (tmp_path / "rights.toml").write_text(text)
    with pytest.raises(InvalidOptionError, match=says) as error:
        parse_access(str(tmp_path / "rights.toml"), SimClock())
    assert "secret-secret" not in str(error.value)


def test_a_right_that_is_taken_away_ends_without_a_restart(tmp_path, caplog):
    file, clock = tmp_path / "rights.toml", SimClock()
    file.write_text(RIGHTS)
    access = ReloadingAcl(str(file), clock)

    def is_known(token):
        clock.sleep_ms(3_000)
        return access().client_of(f"Bearer {token}") is not None

    assert is_known(SHOP)
    file.write_text(RIGHTS.replace("clients.shop", "clients.shop?"))
    assert is_known(SHOP)
    assert "kept the previous access rights" in caplog.text
    file.unlink()
    assert is_known(SHOP)
    file.write_text(RIGHTS.replace(digest(SHOP), digest("another")))
    assert not is_known(SHOP)
    assert is_known("another")


def test_who_may_write_a_table_may_write_its_branches():
    client = acl.Client("a", writable=(acl.parse_pattern("sales.orders"),))
    assert client.can("write", parse_table_name("sales.orders$branch_audit").path)
    assert not client.can("read", parse_table_name("sales.items$branch_audit").path)


def test_there_is_no_right_on_a_branch_alone():
    with pytest.raises(InvalidNameError, match=r"use sales\.orders"):
        acl.parse_pattern("sales.orders$branch_audit")
