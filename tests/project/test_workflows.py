"""The files of the code host agree with the project: targets, versions, and what pre-commit runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import streamhouse_spark
from doc_pages import ROOT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHONS = [classifier.split()[-1] for classifier in PROJECT["classifiers"] if ":: 3." in classifier]


def texts_of(value: object) -> list[str]:
    """Return all texts of a YAML document."""
    if isinstance(value, dict | list):
        return [text for part in (value.values() if isinstance(value, dict) else value) for text in texts_of(part)]
    return [str(value)]


def jobs() -> list[tuple[str, dict]]:
    return [(f"{name}.{job}", body) for name, workflow in WORKFLOWS.items() for job, body in workflow["jobs"].items()]


def test_workflows_call_targets_of_the_makefile():
    targets = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
    called = {
        target
        for _, job in jobs()
        for text in texts_of(job)
        for target in re.findall(r"\bmake ([a-z][a-z0-9-]*)", text)
    }
    called |= {row["target"] for row in WORKFLOWS["test"]["jobs"]["spark"]["strategy"]["matrix"]["include"]}
    assert {"lint", "test", "test-all", "matrix-spark41", "matrix-spark42", "release-check"} <= called
    assert called <= targets


@pytest.mark.parametrize(("name", "job"), jobs(), ids=[name for name, _ in jobs()])
def test_a_job_ends_in_time_and_keeps_no_credentials(name, job):
    assert job["timeout-minutes"] <= 360
    for step in job.get("steps", []):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_workflows_may_read_only_what_they_need():
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"} or name == "docs", name
    writing = {name for name, job in jobs() if "write" in job.get("permissions", {}).values()}
    assert {name for name in writing if not name.startswith("docs.")} == {
        "release.build",
        "release.publish",
        "release.github",
    }
    assert "password" not in (ROOT / ".github/workflows/release.yml").read_text("utf-8").replace("no password", "")


def test_tests_run_on_every_python_and_spark_that_the_package_supports():
    tests = WORKFLOWS["test"]["jobs"]
    (newest,) = [
        step["with"]["python-version"] for step in tests["newest"]["steps"] if "python" in step.get("uses", "")
    ]
    assert [*tests["python"]["strategy"]["matrix"]["python"], newest] == PYTHONS == ["3.11", "3.12", "3.13", "3.14"]
    sparks = [row["spark"] for row in tests["spark"]["strategy"]["matrix"]["include"]]
    pinned = re.search(r"^pyspark==(\d+\.\d+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)[1]
    (spark,) = [need for need in PROJECT["optional-dependencies"]["spark"] if need.startswith("pyspark")]
    oldest, before = re.fullmatch(r"pyspark>=4\.(\d+),<4\.(\d+)", spark).groups()
    assert [*sparks, pinned] == [f"4.{minor}" for minor in range(int(oldest), int(before))]


def test_pre_commit_runs_the_commands_of_make_lint():
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)[1]
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == commands
    assert not any(hook["pass_filenames"] for hook in repository["hooks"]), "the commands name their files"


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_an_issue_form_has_unique_fields(path: Path):
    form = yaml.safe_load(path.read_text("utf-8"))
    assert form["name"]
    assert form["description"]
    fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(set(fields)) == len(fields) > 0


def test_the_citation_names_the_version_and_license():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert str(citation["version"]) == streamhouse_spark.__version__
    assert citation["license"] == PROJECT["license"]
