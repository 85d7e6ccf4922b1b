"""pip-audit over constraints.txt, by OSV's service: what is known of each pinned version now.

``make audit`` runs it. It ends with 0 where nothing is known, 1 where something is, and 3 where the service could not
be asked, or did not answer about each pin: then nothing was found out. A release of another package whose advisories
are many is asked for too, so that a service which knows of none is told apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from advisories import ACCEPTED, CONSTRAINTS, accepted_of, pins_of
from packaging.utils import canonicalize_name

OSV_URL = "https://api.osv.dev/v1/query"
CANARY = ("django", "1.2")
FOUND, NOT_ASKED = 1, 3


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--osv-url", default=OSV_URL, help="where OSV's queries are answered")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="streamhouse-audit-") as folder:
        return judged(_answer(Path(folder), given.osv_url), given.osv_url)


def judged(answer: Mapping[str, Any] | None, url: str) -> int:
    """Return the exit code for pip-audit's answer, None where there is none, and say why."""
    pins = {pin.package: str(pin.version) for pin in pins_of(CONSTRAINTS.read_text())}
    found = {canonicalize_name(one["name"]): one for one in answer["dependencies"]} if answer is not None else {}
    missing = sorted(name for name in (*pins, CANARY[0]) if "vulns" not in found.get(name, {}))
    if missing or not found[CANARY[0]]["vulns"]:
        why = f"no answer about {', '.join(missing[:5])}" if missing else f"it knows nothing about {' '.join(CANARY)}"
        sys.stderr.write(f"{url} could not be asked about all pins ({why}): nothing was found out\n")
        return NOT_ASKED
    bad = [(name, vulnerability["id"]) for name in pins for vulnerability in found[name]["vulns"]]
    for name, id_ in bad:
        sys.stderr.write(f"{name} {pins[name]} is affected by {id_}\n")
    sys.stdout.write(f"{len(pins)} pins, {len(bad)} advisories about them, by {url}\n")
    return FOUND if bad else 0


def _answer(folder: Path, url: str) -> Mapping[str, Any] | None:
    """Run pip-audit, whose exit code is the same for an advisory and for a service that is away."""
    asked, answered = folder / "requirements.txt", folder / "answer.json"
    asked.write_text(f"{CONSTRAINTS.read_text()}\n{CANARY[0]}=={CANARY[1]}\n")
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(asked), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", url, "--progress-spinner", "off"]
    command += ["--format", "json", "--output", str(answered), *_ignored(id_ for _, id_ in _accepted())]
    ran = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    try:
        return json.loads(answered.read_text())
    except (OSError, ValueError):
        sys.stderr.write(f"{ran.stderr.strip().splitlines()[-1:]}\n")
        return None


def _accepted() -> Iterable[tuple[str, str]]:
    return accepted_of(ACCEPTED.read_text())


def _ignored(ids: Iterable[str]) -> list[str]:
    return [word for id_ in ids for word in ("--ignore-vuln", id_)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
