"""`make audit` and the tool that builds `tools/advisories.json`, against a local server of OSV's protocol."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import advisories
import audit
import pytest

from doc_pages import ROOT

AUDITOR = ROOT / ".venv-audit" / "bin" / "python"


class Service(http.server.BaseHTTPRequestHandler):
    """Server of OSV's protocol, with one entry per page."""

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


def test_advisories_are_fetched_page_by_page():
    first, second = ({"id": name, "affected": []} for name in ("PYSEC-1", "PYSEC-2"))
    with service(("other", first), ("other", second)) as url:
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


def test_an_audit_fails_unless_a_service_answered_for_every_pin(capsys):
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
def test_pip_audit_fails_on_advisories_of_a_service_and_without_a_service():
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
