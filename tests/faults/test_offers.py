"""Appends that one process makes for another: every fault at each call, whoever goes on first, and dead offers."""

from __future__ import annotations

import pytest

from faults.offered_appends import AppendOffered, AppendOfferedWithTransaction, goes_on_before_call
from faults.scenarios import Run, prepared
from faults.sweep import sweep_scenario
from streamhouse_spark import Transaction
from streamhouse_spark.log.commits.record import read_record

KINDS = [pytest.param(kind, id=kind.name.replace(" ", "_")) for kind in (AppendOffered, AppendOfferedWithTransaction)]


@pytest.mark.parametrize("scenario", KINDS)
def test_every_fault_at_every_call_of_the_one_that_took_it(scenario):
    assert sweep_scenario(scenario()).runs > 10


@pytest.mark.parametrize("scenario", KINDS)
def test_every_fault_at_every_call_on_a_local_disk(scenario, tmp_path):
    assert sweep_scenario(scenario(), directory=tmp_path / "warehouse").runs > 10


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
@pytest.mark.parametrize("transaction", [None, Transaction("app", 1, "query")], ids=["plain", "transaction"])
def test_the_one_that_waited_goes_on_before_each_call(transaction, is_local, tmp_path):
    base = Run(directory=tmp_path / "warehouse" if is_local else None)
    base.create()
    base.append()
    calls = goes_on_before_call(base, 1000, transaction=transaction)
    assert calls > 3 * is_local
    for at in range(calls):
        goes_on_before_call(base, at, transaction=transaction)


@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_the_store_fails_for_the_one_that_waited_before_its_rows_land(is_local, tmp_path):
    base = Run(directory=tmp_path / "warehouse" if is_local else None)
    base.create()
    base.append()
    last = goes_on_before_call(base, 1000)
    for fails_from in range(5):
        for at in range(last + 1):
            goes_on_before_call(base, at, fails_from=fails_from)


def test_both_are_in_one_record():
    run = prepared(scenario := AppendOffered())
    scenario.work(run)
    table = run.open()
    newest = read_record(run.memory, table.uuid, table.refresh().version)[0]
    assert [len(part.actions) for part in newest.attempts] == [1, 1]
    run.check()
