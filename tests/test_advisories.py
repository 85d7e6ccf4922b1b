"""Pinned packages against known advisories, without a network; and the tools that know them."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import advisories
import audit
import pytest
from packaging.version import Version

ROOT = Path(__file__).parent.parent
AUDITOR = ROOT / ".venv-audit" / "bin" / "python"
FULL = {
    "id": "PYSEC-1",
    "aliases": ["CVE-1"],
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "Ruamel.Yaml"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}, {"fixed": "abc"}]},
                {"type": "ECOSYSTEM", "events": [{"fixed": "1.2"}, {"introduced": "0"}, {"introduced": "2.0"}]},
            ],
            "versions": ["1.0", "1.5.post1", "no version"],
        },
        {
            "package": {"ecosystem": "PyPI", "name": "other"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "3"}, {"last_affected": "4.1"}]}],
        },
        {"package": {"ecosystem": "npm", "name": "other"}, "versions": ["9"]},
    ],
}


def source(*entries) -> advisories.Source:
    return advisories.Source(entries, "a place", "2024-10-10")


def made(*entries, packages=("ruamel-yaml", "other")) -> advisories.Known:
    return advisories.known_of(advisories.written(source(*entries), packages))


def test_no_pin_is_known_to_be_affected():
    """What is known has a date: `make audit` knows more."""
    assert advisories.main(["check"]) == 0


def test_the_file_has_a_source_and_a_date_and_looked_at_each_pin():
    known = advisories.known_of(advisories.KNOWN.read_text())
    assert "advisory-database" in known.source
    assert known.taken == "2024-10-10"
    assert len(known.advisories) > 80
    assert {pin.package for pin in advisories.pins_of(advisories.CONSTRAINTS.read_text())} <= known.packages
    assert known.taken in (ROOT / "SECURITY.md").read_text()


@pytest.mark.parametrize(
    ("pin", "id_"),
    [("aiohttp==3.8.5", "PYSEC-2023-246"), ("PyYAML==5.3", "PYSEC-2021-142"), ("jinja2==2.11.2", "PYSEC-2021-66")],
)
def test_a_planted_pin_is_found(pin, id_):
    known = advisories.known_of(advisories.KNOWN.read_text())
    pins = advisories.pins_of(advisories.CONSTRAINTS.read_text())
    found = advisories.problems([*pins, *advisories.pins_of(pin)], known, {})
    assert any(id_ in line and pin.partition("==")[0].lower() in line for line in found)


@pytest.mark.parametrize(
    ("package", "version", "affected"),
    [
        ("ruamel-yaml", "0.1a1", True),
        ("ruamel-yaml", "1.2rc1", True),
        ("ruamel-yaml", "1.2", False),
        ("ruamel-yaml", "1.5", False),
        ("ruamel-yaml", "1.5.post1", True),
        ("ruamel-yaml", "2", True),
        ("ruamel-yaml", "99.1", True),
        ("other", "2.9", False),
        ("other", "4.1", True),
        ("other", "4.1.post1", False),
        ("other", "9", False),
    ],
)
def test_ranges(package, version, affected):
    found = [one for one in made(FULL).advisories if one.package == package]
    assert [one.affects(Version(version)) for one in found] == [affected]


def test_advisories_that_were_withdrawn_and_events_of_no_form():
    assert made(FULL | {"withdrawn": "2024-01-01T00:00:00Z"}).advisories == []
    for event in ({"fixed": "no version"}, {"limit": "1"}):
        bad = {"id": "X", "affected": [{"package": FULL["affected"][1]["package"]}]}
        bad["affected"][0]["ranges"] = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, event]}]
        with pytest.raises(advisories.DamagedError):
            made(bad)


def test_what_is_accepted_needs_a_reason_and_a_use():
    known = made(FULL)
    pins = advisories.pins_of("other==4\nruamel.yaml==1.5")
    (line,) = advisories.problems(pins, known, {})
    assert line.startswith("other 4 is affected by PYSEC-1, CVE-1: ")
    assert advisories.problems(pins, known, {("other", "CVE-1"): "never called"}) == []
    (line,) = advisories.problems(pins[1:], known, {("other", "CVE-1"): "never called"})
    assert "other is not affected by CVE-1" in line
    accepted = '[[accepted]]\npackage = "other"\nid = "CVE-1"\nreason = "never called"\n'
    assert advisories.accepted_of(accepted) == {("other", "CVE-1"): "never called"}
    for bad in (accepted.replace("never called", " "), accepted.replace("reason", "because")):
        with pytest.raises(advisories.DamagedError):
            advisories.accepted_of(bad)


def test_a_package_that_was_not_looked_at():
    (line,) = advisories.problems(advisories.pins_of("new==1"), made(FULL), {})
    assert line == "new was not looked for in a place of 2024-10-10: make tools/advisories.json anew"


def test_a_damaged_file():
    text = advisories.written(source(FULL), ["other"])
    assert advisories.known_of(text).advisories
    for bad in ("", "[]", text[:-9], text.replace('"4.1"', '"3.1"'), text.replace('"other"', '"others"'), "{}"):
        with pytest.raises(advisories.DamagedError):
            advisories.known_of(bad)


@pytest.mark.parametrize("line", ["numpy>=1", "numpy", "numpy==1.*", "numpy==1,<2"])
def test_lines_that_pin_nothing(line):
    with pytest.raises((advisories.DamagedError, ValueError)):
        advisories.pins_of(line)


def test_it_is_made_of_a_folder_or_a_git_directory(tmp_path):
    folder = tmp_path / "files"
    (folder / "vulns").mkdir(parents=True)
    (folder / "vulns" / "one.json").write_text(json.dumps(FULL))
    (folder / "vulns" / "two.yaml").write_text("id: PYSEC-2\naffected:\n- package: {ecosystem: PyPI, name: other}\n")
    (folder / "README.md").write_text("other")
    (folder / "far.yaml").write_text("id: [")
    plain = advisories.source_of(folder, ["other"])
    assert [entry["id"] for entry in plain.entries] == ["PYSEC-1", "PYSEC-2"]
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    dated = {"GIT_COMMITTER_DATE": "2021-03-04T00:00:00Z"}
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True, env={"PATH": "/usr/bin:/bin", **dated})
    found = advisories.source_of(folder / ".git", ["other"])
    assert ([entry["id"] for entry in found.entries], found.taken) == (["PYSEC-1", "PYSEC-2"], "2021-03-04")


class Service(http.server.BaseHTTPRequestHandler):
    """Speaks OSV's protocol, an entry a page."""

    entries: tuple[tuple[str, dict], ...] = ()
    """The package of each entry, and the entry."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = [entry for name, entry in self.entries if name == asked["package"]["name"]]
        at = int(asked.get("page_token") or 0)
        page = {"vulns": found[at : at + 1]} if found else {}
        if at + 1 < len(found) and "version" not in asked:
            page["next_page_token"] = str(at + 1)
        body = json.dumps(page).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def service(*entries: tuple[str, dict]) -> Iterator[str]:
    handler = type("Handler", (Service,), {"entries": entries})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_is_made_of_a_service():
    second = FULL | {"id": "PYSEC-2"}
    with service(("other", FULL), ("other", second)) as url:
        found = advisories.service_of(url, ["absent", "other"])
        assert [entry["id"] for entry in found.entries] == ["PYSEC-1", "PYSEC-2"]


def answer(**vulns) -> dict:
    names = [pin.package for pin in advisories.pins_of(advisories.CONSTRAINTS.read_text())]
    return {
        "dependencies": [
            {"name": name, "version": "1", "vulns": [{"id": id_} for id_ in vulns.get(name.replace("-", "_"), ())]}
            for name in (*names, "django")
        ]
    }


def test_an_audit_never_passes_where_it_asked_nobody(capsys):
    assert audit.judged(answer(django=["PYSEC-9"]), "url") == 0
    assert audit.judged(answer(django=["PYSEC-9"], aiohttp=["PYSEC-8"]), "url") == audit.FOUND
    assert "aiohttp" in capsys.readouterr().err
    assert audit.judged(None, "url") == audit.NOT_ASKED
    assert audit.judged(answer(), "url") == audit.NOT_ASKED, "a service that knows nothing"
    partial = answer(django=["PYSEC-9"])
    del partial["dependencies"][7]
    assert audit.judged(partial, "url") == audit.NOT_ASKED
    skipped = answer(django=["PYSEC-9"])
    skipped["dependencies"][7] = {"name": "x", "skip_reason": "not found"}
    assert audit.judged(skipped, "url") == audit.NOT_ASKED


@pytest.mark.long
@pytest.mark.skipif(not AUDITOR.exists(), reason="needs pip-audit: make audit")
def test_pip_audit_asks_a_service():
    django = {"id": "PYSEC-9", "affected": []}
    aiohttp = {"id": "PYSEC-8", "affected": []}
    with service(("django", django)) as url:
        assert audited(f"{url}/v1/query") == 0
    with service(("django", django), ("aiohttp", aiohttp)) as url:
        assert audited(f"{url}/v1/query") == audit.FOUND
    assert audited(f"{url}/v1/query") == audit.NOT_ASKED, "nobody listens there any more"


def audited(url: str) -> int:
    command = [AUDITOR, ROOT / "tools" / "audit.py", "--osv-url", url]
    return subprocess.run(command, check=False, capture_output=True).returncode
