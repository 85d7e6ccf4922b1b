"""Random statements give what the same ones give in DuckDB. `make differential HISTORIES=1000` runs more."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pyarrow.compute as pc
import pytest

from spark.statements.columns import CHECKS, DOCUMENT, GENERATED, IDENTITY, Form
from spark.statements.history import History
from spark.statements.lakehouse import Lakehouse
from spark.statements.subjects import DifferenceError, Figures
from streamhouse_spark.lake.iceberg import compaction, position_deletes
from streamhouse_spark.lake.tiering import round as tiering_round
from streamhouse_spark.log.deletion_vectors import NO_DELETIONS
from streamhouse_spark.table.versioning import rollback
from streamhouse_spark.table.versioning.publication import BranchChanges
from streamhouse_spark.warehouse import cloning

pytestmark = pytest.mark.spark

FORMS = {
    "log, iceberg": Form(partition="day", buckets=2, bucket_key="id"),
    "keyed, iceberg": Form(key=("id",), buckets=2, trims=True),
    "log, paimon": Form("paimon", partition="day"),
    "keyed, paimon": Form("paimon", ("id", "day"), "day", 2),
    "log with columns of its own": Form(
        partition="months(d)", extra=(GENERATED[0], IDENTITY), checks=(("small", CHECKS[0]),)
    ),
    "log with documents, paimon": Form("paimon", buckets=2, extra=(DOCUMENT,)),
    "keyed with documents, paimon": Form("paimon", ("id",), extra=(DOCUMENT,)),
}


@pytest.fixture(scope="module")
def house(spark, warehouse_url):
    return Lakehouse(spark, warehouse_url)


def test_a_short_history_answers_as_duckdb_does(house):
    history = History(house, 3, steps=4, form=FORMS["log, iceberg"])
    history.run()
    assert history.figures.checks["DuckDB"] > 0


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(1000, 1003))
def test_random_statements_answer_as_duckdb_does(house, form, seed):
    History(house, seed, form=FORMS[form]).run()


@pytest.mark.long
def test_histories_of_any_form_meet_every_kind_of_statement(house):
    total = Figures()
    for seed in range(2000, 2012):
        history = History(house, seed)
        history.run()
        total.add(history.figures)
    kinds = {kind.partition(",")[0] for kind in total.statements}
    assert kinds > {"INSERT", "MERGE", "UPDATE", "DELETE", "rollback"}, total.statements
    assert total.upkeep["tier"] > 5
    assert total.checks["VERSION AS OF"] > 5


# -- planted defects ---------------------------------------------------------------------------------------------------


def found(house, form, seeds, bias):
    """The first difference of some histories. No others run beside them, so that each run is the same."""
    for seed in seeds:
        try:
            History(house, seed, form=form, company=False, bias={"alter": 0, "replace": 0} | bias).run()
        except DifferenceError as difference:
            return str(difference)
    return ""


def tiering_leaves_deleted_rows_in_the_lake(patch):
    patch.setattr(tiering_round, "rows_to_delete", lambda *_: {})


def tiering_leaves_files_of_paimon_as_they_are(patch):
    from streamhouse_spark.lake.paimon.table import PaimonLake

    patch.setattr(PaimonLake, "delete_rows", lambda *_, **__: [])


def tiering_by_key_forgets_rows_that_changed(patch):
    really = position_deletes.write_changes
    patch.setattr(position_deletes, "write_changes", lambda *a, **k: [f for f in really(*a, **k) if f.deletes is None])


def compaction_brings_deleted_rows_back(patch):
    patch.setattr(compaction, "exclude_deleted", lambda _files, own, stored: (own, stored.num_rows))


def a_rollback_leaves_new_keys(patch):
    words = SimpleNamespace(is_in=pc.is_in, invert=lambda found: pc.and_(found, False))
    patch.setattr(rollback, "pc", words)


def a_publication_forgets_deletions(patch):
    patch.setattr(BranchChanges, "deleted", property(lambda self: {}))


def a_clone_forgets_deletions(patch):
    really = cloning._make_clone_state
    patch.setattr(cloning, "_make_clone_state", lambda *given: replace(really(*given), deletions=NO_DELETIONS))


@pytest.mark.long
@pytest.mark.parametrize(
    ("plant", "form", "bias", "says"),
    [
        (tiering_leaves_deleted_rows_in_the_lake, "log, iceberg", {"tier": 40}, "lake of .* strange [1-9]"),
        (tiering_leaves_files_of_paimon_as_they_are, "log, paimon", {"tier": 40}, "of .* strange [1-9]"),
        (tiering_by_key_forgets_rows_that_changed, "keyed, iceberg", {"tier": 40}, "of .* strange [1-9]"),
        (
            compaction_brings_deleted_rows_back,
            "log, iceberg",
            {"tier": 30, "compact": 30},
            "of .* (strange|missing) [1-9]",
        ),
        (a_rollback_leaves_new_keys, "keyed, iceberg", {"rollback": 40}, "Table.to_arrow of .* strange [1-9]"),
        (
            a_publication_forgets_deletions,
            "log, iceberg",
            {"branch": 60, "tier": 0},
            "a published branch of .* strange [1-9]",
        ),
        (a_clone_forgets_deletions, "log, iceberg", {"clone": 30, "tier": 0}, "a clone of .* strange [1-9]"),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
def test_planted_defects_are_found(house, monkeypatch, plant, form, bias, says):
    plant(monkeypatch)
    text = found(house, FORMS[form], range(3000, 3040), bias)
    assert re.search(says, text, re.DOTALL), text or "no difference"
