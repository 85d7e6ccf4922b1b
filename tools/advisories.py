"""Known advisories about the packages that constraints.txt pins: a check without a network, and the file that it needs.

``python tools/advisories.py check`` fails when a pin is in an affected range and is not accepted with a reason, when a
package was not looked at, and when the file is damaged. It knows what ``tools/advisories.json`` knows, and that has a
date: newer advisories are seen by ``make audit`` alone.

``python tools/advisories.py make PLACE`` makes the file anew from advisories in OSV's format
(https://ossf.github.io/osv-schema/), as YAML or JSON in a folder or in a git directory, such as one of
https://github.com/pypa/advisory-database; ``make --api https://api.osv.dev`` asks a service that speaks OSV's protocol.
Of an advisory only its ids and the versions that it affects are kept.
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import re
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
KNOWN = ROOT / "tools" / "advisories.json"
ACCEPTED = ROOT / "tools" / "accepted_advisories.toml"
_ENDINGS = (".json", ".yaml", ".yml")
_TIMEOUT_S = 30
_CLOSING = {"fixed": "before", "last_affected": "last"}


class DamagedError(Exception):
    """A file that is not what it should be."""


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from one on, up to one that is affected no more (``before``), or that is the last (``last``)."""

    start: str = "0"
    before: str | None = None
    last: str | None = None

    def __contains__(self, version: Version) -> bool:
        is_behind = self.before is not None and version >= Version(self.before)
        is_behind = is_behind or (self.last is not None and version > Version(self.last))
        return not is_behind and (self.start == "0" or version >= Version(self.start))


@dataclass(frozen=True, slots=True)
class Advisory:
    """An advisory as far as it is about one package."""

    id: str
    package: str
    aliases: tuple[str, ...]
    ranges: tuple[Range, ...]
    versions: tuple[str, ...]
    """Further versions that it affects, in no range."""

    def affects(self, version: Version) -> bool:
        return any(version in one for one in self.ranges) or version in {Version(text) for text in self.versions}


class Known(NamedTuple):
    """Advisories, and the packages that were looked for in their source."""

    source: str
    taken: str
    """Date of the source."""
    packages: frozenset[str]
    advisories: Sequence[Advisory]


class Pin(NamedTuple):
    package: str
    version: Version


class Source(NamedTuple):
    """Entries in OSV's format, the source's name and its date."""

    entries: Iterable[Mapping[str, Any]]
    name: str
    taken: str


# -- the check --------------------------------------------------------------------------------------------------------


def problems(pins: Sequence[Pin], known: Known, accepted: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a line for each thing that is wrong. ``accepted`` has reasons by package and id."""
    found = [
        f"{pin.package} was not looked for in {known.source} of {known.taken}: make tools/advisories.json anew"
        for pin in pins
        if pin.package not in known.packages
    ]
    used = set()
    for advisory in known.advisories:
        ids = [(advisory.package, one) for one in (advisory.id, *advisory.aliases)]
        for pin in pins:
            if pin.package != advisory.package or not advisory.affects(pin.version):
                continue
            reasons = [key for key in ids if key in accepted]
            used.update(reasons)
            if not reasons:
                names = ", ".join(one for _, one in ids)
                found.append(
                    f"{pin.package} {pin.version} is affected by {names}: pin another version, or accept it with a "
                    "reason in tools/accepted_advisories.toml"
                )
    return found + [
        f"{package} is not affected by {id_}: take it out of tools/accepted_advisories.toml"
        for package, id_ in accepted.keys() - used
    ]


def pins_of(text: str) -> list[Pin]:
    """Parse the lines of constraints.txt. Raises `DamagedError` for one that pins no single version."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement = Requirement(line)
        (clause,) = requirement.specifier or (None,)
        if clause is None or clause.operator != "==" or clause.version.endswith("*"):
            raise DamagedError(f"constraints.txt: {line!r} pins no version")
        found.append(Pin(canonicalize_name(requirement.name), Version(clause.version)))
    return found


def accepted_of(text: str) -> dict[tuple[str, str], str]:
    """Parse reasons by package and id. Raises `DamagedError` for an entry without any of them."""
    found = {}
    for entry in tomllib.loads(text).get("accepted", ()):
        if set(entry) != {"package", "id", "reason"} or not str(entry["reason"]).strip():
            raise DamagedError(f"accepted_advisories.toml: {entry} needs package, id and reason, and nothing else")
        found[canonicalize_name(entry["package"]), entry["id"]] = entry["reason"]
    return found


def known_of(text: str) -> Known:
    """Parse the file of advisories. Raises `DamagedError`."""
    try:
        document = json.loads(text)
        if document.pop("sha256") != _digest(document):
            raise DamagedError("advisories.json was changed by hand, or is damaged: make it anew")
        advisories = [
            Advisory(
                one["id"],
                one["package"],
                tuple(one["aliases"]),
                tuple(Range(**given) for given in one["ranges"]),
                tuple(one["versions"]),
            )
            for one in document["advisories"]
        ]
        return Known(document["source"], document["taken"], frozenset(document["packages"]), advisories)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"advisories.json is damaged, make it anew: {error!r}") from error


# -- the file ---------------------------------------------------------------------------------------------------------


def written(source: Source, packages: Iterable[str]) -> str:
    """Return the file with the advisories of a source about some packages."""
    wanted = frozenset(packages)
    found = {advisory for entry in source.entries for advisory in advisories_of(entry, wanted)}
    document = {
        "source": source.name,
        "taken": source.taken,
        "packages": sorted(wanted),
        "advisories": [
            _without_nothing(one) for one in sorted(found, key=lambda one: (one.package, one.id, str(one.ranges)))
        ],
    }
    lines = ",\n".join(f"    {json.dumps(one)}" for one in document["advisories"])
    head = {name: document[name] for name in ("source", "taken", "packages")} | {"sha256": _digest(document)}
    body = json.dumps(head, indent=2)
    return f'{body[:-2]},\n  "advisories": [\n{lines}\n  ]\n}}\n'


def advisories_of(entry: Mapping[str, Any], packages: frozenset[str]) -> Iterator[Advisory]:
    """Return what an entry in OSV's format says of these packages. Raises `DamagedError` for versions of no form."""
    if entry.get("withdrawn"):
        return
    for affected in entry.get("affected") or ():
        package = affected.get("package") or {}
        name = canonicalize_name(package.get("name", ""))
        if package.get("ecosystem") != "PyPI" or name not in packages:
            continue
        events = [one["events"] for one in affected.get("ranges") or () if one["type"] in ("ECOSYSTEM", "SEMVER")]
        try:
            ranges = tuple(found for one in events for found in _ranges(one))
        except InvalidVersion as error:
            raise DamagedError(f"{entry['id']}: {error}") from error
        others = {text for text in affected.get("versions") or () if _is_beside(text, ranges)}
        yield Advisory(entry["id"], name, tuple(sorted(entry.get("aliases") or ())), ranges, tuple(sorted(others)))


def _ranges(events: Iterable[Mapping[str, str]]) -> Iterator[Range]:
    """Pair the events of a range, which may stand in any order."""
    pairs = [(kind, text) for event in events for kind, text in event.items()]
    if unknown := {kind for kind, _ in pairs} - {"introduced", *_CLOSING}:
        raise DamagedError(f"events {sorted(unknown)} are not known here")
    start: str | None = None
    for kind, text in sorted(pairs, key=lambda pair: (pair[1] != "0", Version(pair[1]), pair[0] == "introduced")):
        if kind == "introduced":
            start = start or text
        elif start is not None:
            yield Range(start, **{_CLOSING[kind]: text})
            start = None
    if start is not None:
        yield Range(start)


def _is_beside(text: str, ranges: Sequence[Range]) -> bool:
    """Tell whether a version that is listed is in no range. One of no form is no pin's."""
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return not any(version in one for one in ranges)


def _without_nothing(advisory: Advisory) -> dict[str, Any]:
    ranges = [{name: text for name, text in asdict(one).items() if text is not None} for one in advisory.ranges]
    return asdict(advisory) | {"ranges": ranges}


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


# -- sources ----------------------------------------------------------------------------------------------------------


def source_of(place: Path, packages: Iterable[str]) -> Source:
    """Read the entries below a folder, or of the newest commit of a git directory."""
    is_git = (place / "HEAD").is_file() and (place / "objects").is_dir()
    texts = _git_texts(place) if is_git else ((file.name, file.read_text()) for file in sorted(_files(place)))
    taken, name = dt.datetime.now(dt.UTC).date().isoformat(), "advisories in OSV's format"
    if is_git:
        revision, taken = _git(place, "log", "-1", "--format=%H %cs", "HEAD").decode().split()
        name = f"revision {revision[:12]} of a database in OSV's format"
    names = re.compile("|".join(re.escape(one) for one in sorted(packages)))
    near = ((name, text) for name, text in texts if names.search(re.sub(r"[-_.]+", "-", text.lower())))
    return Source((_parsed(name, text) for name, text in near), name, taken)


def service_of(url: str, packages: Iterable[str]) -> Source:
    """Ask a service that speaks OSV's protocol for all entries of each package."""

    def entries() -> Iterator[Mapping[str, Any]]:
        for package in packages:
            page: dict[str, Any] = {"next_page_token": None}
            while "next_page_token" in page:
                more = {"page_token": token} if (token := page["next_page_token"]) else {}
                asked = {"package": {"name": package, "ecosystem": "PyPI"}, **more}
                body = json.dumps(asked).encode()
                request = urllib.request.Request(f"{url.rstrip('/')}/v1/query", body, method="POST")  # noqa: S310 - as said
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - as before
                    page = json.load(answer)
                yield from page.get("vulns") or ()

    return Source(entries(), url, dt.datetime.now(dt.UTC).date().isoformat())


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix in _ENDINGS and file.is_file())


def _git(place: Path, *arguments: str, given: bytes | None = None) -> bytes:
    command = ["git", "--git-dir", str(place), *arguments]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout


def _git_texts(place: Path) -> Iterator[tuple[str, str]]:
    listed = _git(place, "ls-tree", "-r", "-z", "HEAD").decode().split("\0")
    files = [line.partition("\t") for line in listed if line.endswith(_ENDINGS)]
    blobs = [head.split()[2] for head, _, _ in files]
    found = _git(place, "cat-file", "--batch", given="\n".join(blobs).encode())
    at = 0
    for _, _, name in files:
        end = found.index(b"\n", at)
        size = int(found[at:end].rsplit(b" ", 1)[1])
        yield name, found[end + 1 : end + 1 + size].decode()
        at = end + 1 + size + 1


def _parsed(name: str, text: str) -> Mapping[str, Any]:
    try:
        if name.endswith(".json"):
            return json.loads(text)
        import yaml

        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - the safe one
    except ValueError as error:
        raise DamagedError(f"{name}: {error}") from error


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    make = commands.add_parser("make")
    place = make.add_mutually_exclusive_group(required=True)
    place.add_argument("place", nargs="?", type=Path)
    place.add_argument("--api", metavar="URL")
    make.add_argument("--source", metavar="NAME", help="the name of the source, and its license")
    given = parser.parse_args(arguments)
    pins = pins_of(CONSTRAINTS.read_text())
    if given.command == "make":
        packages = sorted({pin.package for pin in pins})
        source = service_of(given.api, packages) if given.api else source_of(given.place, packages)
        source = source._replace(name=given.source) if given.source else source
        KNOWN.write_text(written(source, packages))
    known = known_of(KNOWN.read_text())
    found = problems(pins, known, accepted_of(ACCEPTED.read_text()))
    for line in found:
        sys.stderr.write(f"{line}\n")
    told = f"{len(pins)} pins, {len(known.advisories)} advisories of {known.taken}, {len(found)} problems"
    sys.stdout.write(f"{told}; later advisories: make audit\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
