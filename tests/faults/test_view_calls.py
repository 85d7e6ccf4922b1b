"""A fault at every storage call of a view's refresh: its rows and the versions that it names always belong together.

The refresh adds up what came, without Spark, so that changes which count twice or not at all are seen: once over all
rows of source and view, and once over the changes that the driver reads and the view's rows that it looks up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from faults.faulty_storage import sweep
from faults.sequential import one_thing_at_a_time
from faults.share import WHOLE, Share
from faults.sim import SimClock, sim_world
from kit.warehouses import new_host
from streamhouse_spark import Table, Warehouse
from streamhouse_spark.core.clock import World
from streamhouse_spark.kv.tablet import close_tablets
from streamhouse_spark.log.transactions import Lineage
from streamhouse_spark.storage.base import Storage
from streamhouse_spark.storage.memory import MemoryStorage
from streamhouse_spark.table import refresh_commit
from streamhouse_spark.views.local_reads import lookup_view_rows, read_changes

HOT = {"table.datalake.enabled": "false"}
ROWS = [{"k": n % 4} for n in range(10)]
MORE = [{"k": n % 6} for n in range(7)]


def opened(storage: Storage, seed: int) -> tuple[Table, Table]:
    warehouse = Warehouse("wh", storage=storage, world=sim_world(seed))
    return warehouse.table("source"), warehouse.table("view")


@pytest.fixture(autouse=True)
def hosts(tmp_path, monkeypatch, own_cache):
    monkeypatch.setenv("STREAMHOUSE_CACHE_DIR", str(tmp_path))
    yield
    close_tablets()


def new_store() -> Storage:
    new_host()
    storage = MemoryStorage(sim_world())
    warehouse = Warehouse("wh", storage=storage, world=sim_world(1))
    source = warehouse.create_table("source", "k INT", properties=HOT)
    warehouse.create_table("view", "k INT, n BIGINT", primary_key=["k"], properties=HOT)
    source.append(ROWS)
    refresh(storage, 2)
    source.append(MORE)
    return storage


def keys_of(source: Table) -> list[int]:
    return source.to_arrow()["k"].to_pylist()


def counts(view: Table) -> Counter[int]:
    return Counter({row["k"]: row["n"] for row in view.to_arrow().to_pylist()})


def refresh_by_key(storage: Storage, seed: int) -> None:
    """Add the changes that are read to the rows of the view that are looked up."""
    source, view = opened(storage, seed)
    for _ in range(4):
        step = refresh_commit.make_next_step(view, {"source": source})
        if step is None:
            return
        if step.new.whole_because:
            refresh(storage, seed)
            continue
        assert step.old is not None
        (old,), (new,) = step.old.sources, step.new.sources
        changes = read_changes(source, source.state, old.ends, new.ends, ["k"])
        assert changes is not None, "a few changes that are there can be read"
        came = Counter(changes.net(["k"])["k"].to_pylist())
        known = lookup_view_rows(view, pa.table({"k": pa.array(came, pa.int32())})) if came else view_of([])
        rows = [{"k": row["k"], "n": (row["n"] or 0) + came[row["k"]]} for row in known.to_pylist()]
        refresh_commit.commit_step(view, step, view_of(rows), pa.array([False] * len(rows)))


def view_of(rows: list[dict[str, int]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([("k", pa.int32()), ("n", pa.int64())]))


def refresh(storage: Storage, seed: int) -> None:
    source, view = opened(storage, seed)
    for _ in range(4):
        step = refresh_commit.make_next_step(view, {"source": source})
        if step is None:
            return
        (new,) = step.new.sources
        begin = step.old.sources[0].ends[0] if step.old and not step.new.whole_because else 0
        known = counts(view) if begin else Counter()
        came = Counter(keys_of(source)[begin : new.ends[0]])
        rows = [{"k": k, "n": known[k] + n} for k, n in came.items()]
        gone = [{"k": k, "n": None} for k in counts(view) if step.new.whole_because and k not in came]
        table = pa.Table.from_pylist([*rows, *gone], schema=view.state.schema.arrow)
        refresh_commit.commit_step(view, step, table, pa.array(np.arange(len(table)) >= len(rows)))


def require_consistent(storage: Storage, seed: int) -> int:
    """The view is the answer over the version that it names. Returns the number of rows of that version."""
    source, view = opened(storage, seed)
    _, lineage = refresh_commit.last_refresh(view.refresh())
    assert lineage is not None
    end = lineage.sources[0].ends[0]
    assert counts(view) == Counter(keys_of(source)[:end])
    return end


Refresh = Callable[[Storage, int], None]


def check(share: Share, refresh: Refresh = refresh) -> None:
    with one_thing_at_a_time():
        sweep_through(share, refresh)


def sweep_through(share: Share, refresh: Refresh) -> None:
    for attempt in sweep(new_store, lambda storage: refresh(storage, 3), share=share, each_state_once=True):
        new_host()
        end = require_consistent(attempt.store, 4)
        assert end in ((len(ROWS), len(ROWS) + len(MORE)) if attempt.raised else (len(ROWS) + len(MORE),)), attempt
        source, view = opened(attempt.store, 5)
        source.append([{"k": 9}])
        refresh(attempt.store, 6)
        assert require_consistent(attempt.store, 7) == len(ROWS) + len(MORE) + 1, attempt
        version = view.refresh().version
        refresh(attempt.store, 8)
        assert view.refresh().version == version, f"{attempt}: a refresh without new rows made a commit"
    close_tablets()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", [refresh, pytest.param(refresh_by_key, marks=pytest.mark.long)])
def test_rows_and_versions_of_a_view_agree_whichever_call_of_a_refresh_fails(share, how):
    check(share, how)


def test_of_two_refreshes_at_once_only_one_counts():
    """Both have read the same versions: one counts, and what the other computed changes nothing."""
    storage = new_store()
    source, view = opened(storage, 3)
    step = refresh_commit.make_next_step(view, {"source": source})
    opened(storage, 20)[0].append([{"k": 1}])
    refresh(storage, 21)
    rows = pa.Table.from_pylist([{"k": 0, "n": 99}], schema=view.state.schema.arrow)
    assert refresh_commit.commit_step(view, step, rows, pa.array([False])) is False
    assert require_consistent(storage, 5) == len(ROWS) + len(MORE) + 1
    close_tablets()


def lineage_is_forgotten():
    return mock.patch.object(refresh_commit, "last_refresh", lambda state: (real_last(state)[0], old_begin(state)))


real_last = refresh_commit.last_refresh


def old_begin(state: object) -> Lineage | None:
    """The versions of the refresh before the last one: its changes count again."""
    number, lineage = real_last(state)
    if lineage is None or number < 2:
        return lineage
    source = lineage.sources[0]
    ends = {bucket: max(end - 1, 0) for bucket, end in source.ends.items()}
    return Lineage((type(source)(source.name, source.uuid, source.version - 1, None, ends),))


def rows_without_a_transaction():
    """Rows and versions are two commits, so a crash between them counts the rows twice."""
    real = refresh_commit.commit_step

    def torn(view, step, rows, gone):
        refresh_commit.PrimaryKeyTable(view).change(rows, np.asarray(gone))
        return real(view, step, rows.slice(0, 0), gone.slice(0, 0))

    return mock.patch.object(refresh_commit, "commit_step", torn)


def old_rows_are_looked_up_too_early():
    """Rows of the view are those of before its last refresh: what that one added is lost."""
    real = lookup_view_rows

    def early(view, keys):
        found = real(view, keys)
        names = found.column_names
        return found.set_column(names.index("n"), "n", pa.array([0] * len(found), pa.int64()))

    return mock.patch(f"{__name__}.lookup_view_rows", early)


def test_a_planted_bug_of_lookups_is_found():
    with old_rows_are_looked_up_too_early(), pytest.raises(AssertionError):
        check(WHOLE, refresh_by_key)
    close_tablets()


def a_truncation_is_overlooked():
    return mock.patch.object(refresh_commit, "_describe_action", return_value=None)


@pytest.mark.parametrize("bug", [lineage_is_forgotten, rows_without_a_transaction])
def test_planted_bugs_are_found(bug):
    with bug(), pytest.raises((AssertionError, IndexError)):
        check(WHOLE)
    close_tablets()


def truncated_and_refreshed() -> None:
    storage = new_store()
    source, view = opened(storage, 3)
    source.truncate()
    source.append([{"k": 7}, {"k": 7}])
    step = refresh_commit.make_next_step(view, {"source": source})
    assert step is not None
    assert "truncated" in (step.new.whole_because or "")
    close_tablets()


def test_a_truncation_is_seen():
    truncated_and_refreshed()
    with a_truncation_is_overlooked(), pytest.raises(AssertionError):
        truncated_and_refreshed()


@pytest.mark.parametrize("change", ["again", "columns", "rows", "trimmed"])
def test_what_changes_do_not_tell(change):
    storage = new_store()
    source, view = opened(storage, 3)
    warehouse = Warehouse("wh", storage=storage, world=sim_world(9))
    if change == "again":
        warehouse.drop_table("source")
        source = warehouse.create_table("source", "k INT", properties=HOT)
    elif change == "columns":
        source.alter(add_columns="x INT")
    elif change == "trimmed":  # nothing else keeps the rows
        source.alter_properties({"table.log.ttl": "1h"})
        clock = SimClock()
        clock.sleep_ms(10 * 86_400_000)
        later = Warehouse("wh", storage=storage, world=World(clock, sim_world(30).ids)).table("source")
        storage._world.clock.sleep_ms(10 * 86_400_000)
        later.maintain()
        assert keys_of(later) == []
    else:
        source.delete(where=[("k", "=", 0)])
    step = refresh_commit.make_next_step(view, {"source": source})
    expected = {
        "again": "recreated",
        "columns": "columns changed",
        "rows": "rows deleted",
        "trimmed": "no lake with the rows",
    }
    assert step is not None
    assert expected[change] in (step.new.whole_because or "")
    close_tablets()
