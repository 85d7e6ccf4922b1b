"""Recorded durations: what they choose for each run."""

from __future__ import annotations

import pytest

from durations import (
    NEW_ITEM_SECONDS,
    ROOT,
    SHORT_RUN_SECONDS_MAX,
    STORE,
    Durations,
    FileDurations,
    changed_files,
    merge_recording,
    most_relevant_first,
)

TEXT = """\
# a comment
tests/a/test_x.py\t1.0\t10\t0.0\t0
::test_slow[a\tb]\t9.0\t-
::test_needed\t5.0\talways
tests/b/test_y.py\t0.0\t0\t2.0\t20
::test_sql\t0.4\tspark
"""


@pytest.fixture
def durations():
    return Durations.parse(TEXT)


def test_the_recorded_items_of_make_test_fit_its_budget():
    assert Durations.parse(STORE.read_text("utf-8")).short_run_seconds() <= SHORT_RUN_SECONDS_MAX


def test_the_store_has_no_file_that_is_gone():
    names = Durations.parse(STORE.read_text("utf-8")).files
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_a_store_is_written_as_it_is_read(durations):
    assert Durations.parse(durations.text()) == durations
    assert durations.text().splitlines()[1:3] == ["# 2 files, 33 items", "# 17 seconds, of `make test` 6"]


def test_an_item_without_a_row_has_the_mean_of_its_file(durations):
    assert durations.seconds_of("tests/a/test_x.py::test_other") == pytest.approx(0.1)
    assert durations.seconds_of("tests/a/test_x.py::test_needed") == 5.0
    assert durations.seconds_of("tests/b/test_y.py::test_new") == NEW_ITEM_SECONDS
    assert durations.seconds_of("tests/c/test_new.py::test_new") == NEW_ITEM_SECONDS


def test_files_without_short_items_are_not_collected(durations):
    assert durations.may_have_short_items("tests/a/test_x.py")
    assert not durations.may_have_short_items("tests/b/test_y.py")
    assert durations.may_have_short_items("tests/c/test_new.py")


def test_shards_hold_each_file_once_and_take_equally_long():
    seconds = [50.0, 30.0, 20.0, 20.0, 10.0, 10.0]
    files = {f"tests/test_{n}.py": FileDurations({}, s, 1) for n, s in enumerate(seconds)}
    shards = Durations(files).shards(files, 2)
    assert sorted(path for shard in shards for path in shard) == sorted(files)
    assert [sum(files[path].seconds for path in shard) for shard in shards] == [70, 70]


def test_files_that_do_not_fit_are_passed_over():
    files = {f"tests/test_{n}.py": FileDurations({f"tests/test_{n}.py::test": (float(n), "-")}) for n in range(1, 6)}
    assert Durations(files).within(sorted(files, reverse=True), 8) == ["tests/test_5.py", "tests/test_3.py"]


def test_a_recording_replaces_its_files_in_the_stored_units(durations):
    needed, slow = "tests/project/test_durations.py::test_needed", "tests/project/test_durations.py::test_slow"
    stored = Durations({"tests/project/test_durations.py": FileDurations({needed: (4.0, "always")}, 1.0, 3)})
    recorded = {needed: (2.0, "always"), slow: (3.0, "-"), "tests/project/test_durations.py::test_fast": (0.01, "-")}
    (file,) = merge_recording(stored, recorded).files.values()
    assert file.items == {needed: (4.0, "always"), slow: (6.0, "-")}
    assert (file.num_fast, file.fast_seconds) == (1, pytest.approx(0.02))


def test_ci_begins_with_what_changed():
    paths = ["tests/kills/test_kills.py", "tests/project/test_durations.py", "tests/unit/log/test_staging.py"]
    changed = ["src/streamhouse_spark/log/staging.py", "tests/project/test_durations.py"]
    assert most_relevant_first(paths, changed, turn=0) == [paths[1], paths[2], paths[0]]
    assert most_relevant_first(paths, [], turn=1) == [paths[1], paths[2], paths[0]]
    assert most_relevant_first(paths, [], turn=4) == [paths[1], paths[2], paths[0]]


def test_changed_files_are_those_of_this_repository():
    assert all(not name.startswith("/") for name in changed_files())
