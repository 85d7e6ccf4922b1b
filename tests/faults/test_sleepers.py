"""A writer by key that sleeps for days at any storage call, while others clean, names no file that is gone."""

from __future__ import annotations

import pytest

from faults.sleepers import WORK, check_sleepers


@pytest.mark.usefixtures("own_cache")
@pytest.mark.sampled(8)
@pytest.mark.parametrize(("work", "days"), [*((work, 2) for work in WORK), ("upserts", 12), ("maintains", 12)])
def test_a_writer_that_slept_names_no_file_that_is_gone(work, days, share):
    check_sleepers(work, days, share)
