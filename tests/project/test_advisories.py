"""No pinned package has an advisory in `tools/advisories.json`; planted pins that have one are found."""

from __future__ import annotations

import json
import subprocess

import advisories
import pytest
from packaging.version import Version

from doc_pages import ROOT

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


def test_no_pinned_package_has_a_known_advisory():
    """The file has the advisories up to its date. `make audit` asks for newer ones."""
    assert advisories.main(["check"]) == 0


def test_the_file_states_its_source_and_date_and_covers_every_pin():
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
def test_affected_ranges_follow_the_order_of_versions(package, version, affected):
    found = [one for one in made(FULL).advisories if one.package == package]
    assert [one.affects(Version(version)) for one in found] == [affected]


def test_withdrawn_advisories_are_left_out_and_malformed_events_rejected():
    assert made(FULL | {"withdrawn": "2024-01-01T00:00:00Z"}).advisories == []
    for event in ({"fixed": "no version"}, {"limit": "1"}):
        bad = {"id": "X", "affected": [{"package": FULL["affected"][1]["package"]}]}
        bad["affected"][0]["ranges"] = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, event]}]
        with pytest.raises(advisories.DamagedError):
            made(bad)


def test_an_accepted_advisory_needs_a_reason_and_a_use():
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


def test_a_package_missing_from_the_file_is_reported():
    (line,) = advisories.problems(advisories.pins_of("new==1"), made(FULL), {})
    assert line == "new was not looked for in a place of 2024-10-10: make tools/advisories.json anew"


def test_a_damaged_file_is_rejected():
    text = advisories.written(source(FULL), ["other"])
    assert advisories.known_of(text).advisories
    for bad in ("", "[]", text[:-9], text.replace('"4.1"', '"3.1"'), text.replace('"other"', '"others"'), "{}"):
        with pytest.raises(advisories.DamagedError):
            advisories.known_of(bad)


@pytest.mark.parametrize("line", ["numpy>=1", "numpy", "numpy==1.*", "numpy==1,<2"])
def test_a_requirement_that_pins_no_version_is_rejected(line):
    with pytest.raises((advisories.DamagedError, ValueError)):
        advisories.pins_of(line)


def test_the_file_is_built_from_a_folder_or_a_git_directory(tmp_path):
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
