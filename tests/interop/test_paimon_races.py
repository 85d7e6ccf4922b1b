"""A stock writer of Paimon commits by renaming, in another process, while we tier: our rows are in the lake once.

Its own rows may get lost, as with any other writer of Paimon beside it; ours are tiered again where that is noticed.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory

from interop.lake_cases import PLAIN
from kit.tables import tier
from streamhouse_spark import CommitConflictError, Warehouse
from streamhouse_spark.storage.local import LocalStorage

ROUNDS = 15
THEIRS = 10**6
"""From here on ids are the stock writer's."""


def append_stock(lake: str, sleep_s: float, begun, stop) -> None:
    """Append row after row, sleeping between the look whether a number is free and the renaming to it."""
    rename = Path.rename

    def slowly(self, target):
        time.sleep(sleep_s)
        return rename(self, target)

    Path.rename = slowly  # type: ignore[method-assign]
    table = CatalogFactory.create({"warehouse": lake}).get_table("sales.orders")
    number = THEIRS
    is_last = False
    while not is_last:
        is_last = stop.is_set()  # nobody races with the last one, so one of them stays
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.table({"id": [number], "name": ["theirs"]}, schema=PLAIN.arrow))
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()
        number += 1
        begun.set()
        time.sleep(0.1)  # else nobody else gets a turn on a busy machine


@pytest.mark.long
@pytest.mark.parametrize("sleep_s", [0, 0.02])
def test_a_stock_writer_in_another_process_takes_no_row_of_ours(tmp_path, sleep_s, record_property, caplog):
    wh = Warehouse("wh", storage=LocalStorage(str(tmp_path), fsync=False))
    properties = {"table.datalake.format": "paimon", "table.log.ttl": "100ms"}
    table = wh.create_table("sales.orders", PLAIN.arrow, properties=properties)
    table.append(_row(0))
    conflicts = _tier(table)
    context = multiprocessing.get_context("spawn")
    begun, stop = context.Event(), context.Event()
    stock = context.Process(target=append_stock, args=(f"{tmp_path}/lake", sleep_s, begun, stop))
    stock.start()
    try:
        assert begun.wait(240)
        for number in range(1, ROUNDS):
            table.append(_row(number))
            conflicts += _tier(table)
            if number % 5 == 0:
                with suppress(CommitConflictError):  # ours was replaced; the next round tiers it again
                    table.maintain()
    finally:
        stop.set()
        stock.join(240)
    assert stock.exitcode == 0
    table.append(_row(ROUNDS))
    conflicts += _tier(table)
    noticed = caplog.text.count("replaced lake snapshot")
    in_lake = table.lake.to_arrow()["id"].to_pylist()
    theirs = [i for i in in_lake if i >= THEIRS]
    lost = max(theirs, default=THEIRS) - THEIRS + 1 - len(theirs) if theirs else 0
    figures = (
        f"{conflicts} of our rounds planned again, {noticed} noticed later; {len(theirs)} of its rows, {lost} lost"
    )
    record_property("figures", figures)
    print(f"a stock writer that sleeps {sleep_s} s: {figures}")  # noqa: T201 - the figures are what it is run for
    assert sorted(i for i in in_lake if i < THEIRS) == list(range(ROUNDS + 1))
    assert sorted(i for i in table.to_arrow()["id"].to_pylist() if i < THEIRS) == list(range(ROUNDS + 1))
    assert len(theirs) == len(set(theirs))
    assert theirs


def _row(number: int) -> pa.Table:
    return pa.table({"id": [number], "name": ["ours"]}, schema=PLAIN.arrow)


def _tier(table) -> int:
    return tier(table).conflicts
