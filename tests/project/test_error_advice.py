"""Each error text that advises something is followed by a case of `tests/unit/advice`, or by a test named here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.advice import test_advice
from unit.advice import test_conflicts as test_advice_conflicts
from unit.advice import test_lakes as test_advice_lakes
from unit.advice import test_tables as test_advice_tables
from unit.error_texts import ErrorText, error_texts

TESTS = Path(__file__).parents[1]
MODULES = (test_advice, test_advice_conflicts, test_advice_lakes, test_advice_tables)
CASES = [advice for module in MODULES for advice in module.ADVICE.values()]
ARGUMENTS = {
    "INVALID_OPTION",
    "INVALID_NAME",
    "SCHEMA_MISMATCH",
    "TABLE_EXISTS",
    "TABLE_NOT_FOUND",
    "WAREHOUSE_NOT_FOUND",
    "DATABASE_NOT_EMPTY",
    "DATABASE_NOT_FOUND",
    "DATABASE_EXISTS",
}
"""Arguments that cannot be, of which the text says what can be. Those count that ask for more than another one."""
ASKS_FOR_MORE = re.compile(
    r"retier|relocate|[Ss]et (it|the|table)|TBLPROPERTIES|ALTER TABLE|checkpoint|\bagain\b|fill it|new table|use upsert"
    r"|[Dd]rop (it|or|the|them|this)|\badd a|INSERT"
)

ELSEWHERE = {
    "when the query or view was created; create it again": (
        "unit/table/test_scan.py::test_columns_that_another_process_alters_are_never_read_as_others"
    ),
    "delete the rows with it (write them into a table with an Iceberg lake first": (
        "unit/test_extreme_values.py::test_a_table_with_such_a_row_from_an_older_version_is_tiered_again"
    ),
    "which is not supported; rewrite the file without shredding": (
        "unit/lake/paimon/test_variants.py::test_a_value_in_columns_of_its_own_is_refused"
    ),
    "has an …; leave the column out": "unit/schema/test_variant.py::test_bytes_that_are_no_variant",
    "was deleted; restore its files, or choose a later commit of": (
        "unit/table/maintenance/test_rebuild_lake.py::test_a_former_lake_that_is_gone_is_an_error_that_says_so"
    ),
    "changed the columns later, and the records with the earlier columns": (
        "unit/read/test_time_travel.py::test_columns_that_no_kept_record_tells_are_an_error"
    ),
    "while its hot rows were read; retry": (
        "unit/serve/iceberg/test_served_tables.py::test_rows_that_went_from_the_lake_while_it_was_looked_at_do_not_come_back"
    ),
    "JOB_ENDED": (
        "unit/datasource/catalog/procedures/test_spark_jobs.py::test_what_was_committed_before_a_job_that_ends_early_stays"
    ),
    "datasource/catalog/procedures/procedures.py STREAMHOUSE": (
        "spark/test_materialize_calls.py::test_what_is_wrong_is_said_as_in_python"
    ),
    "cli/spark_session.py STREAMHOUSE": "unit/cli/test_spark_commands.py::test_an_error_of_spark_is_told_as_ours",
    "file groups were rewritten; retry": (
        "unit/table/maintenance/test_optimize.py::test_nothing_is_committed_where_others_fail"
    ),
    "give followers that run at the same time different names": (
        "unit/read/test_follow.py::TestFencing::test_a_newer_follower_fences_the_older_one"
    ),
    "restart the query when the registry is available": (
        "spark/test_cdc_avro.py::test_a_registry_that_is_away_ends_the_query_and_a_restart_goes_on"
    ),
    "set a smaller realTimeTasks, or stop another query first": (
        "unit/datasource/realtime/test_planning.py::test_queries_that_run_already_take_cores_too"
    ),
    "SCHEMA_REGISTRY_REFUSED": (
        "spark/test_cdc_avro.py::test_refused_credentials_end_the_query_and_right_ones_continue_it"
    ),
    "the part of the ticket is no longer readable": (
        "unit/serve/flight/test_flight.py::test_a_part_that_can_no_longer_be_read_as_it_was_offered"
    ),
    "the ticket is for part": "unit/serve/flight/test_flight.py::test_a_ticket_for_a_part_that_there_is_not",
    "the ticket has only some of uuid, plan and part": (
        "unit/serve/flight/test_flight.py::test_a_ticket_for_a_part_that_there_is_not"
    ),
    "cannot reserve identity values of column": (
        "faults/test_identity_calls.py::test_a_writer_that_others_are_always_ahead_of_gives_up"
    ),
    "of its rows are stored; continue with a real-time trigger": (
        "unit/log/test_commit_validation.py::test_a_query_that_wrote_in_real_time_mode_writes_no_micro_batch"
    ),
    "which rows are stored; continue with a micro-batch trigger": (
        "spark/test_real_time_sink.py::test_a_query_keeps_its_trigger"
    ),
    "startingOffsets to the end of the stored rows": (
        "unit/datasource/realtime/test_sink.py::TestRestoring::test_a_target_without_batches_that_the_checkpoint_has"
    ),
    "Start with a new checkpointLocation to write all rows; or, ": (
        "unit/datasource/realtime/test_sink.py::test_another_table_of_the_name_is_noticed"
    ),
    "set a smaller realTimeTasks for these streams": (
        "unit/datasource/realtime/test_planning.py::test_all_streams_of_a_query_need_a_core_for_each_of_their_tasks"
    ),
    "all rows after them are written": (
        "unit/datasource/realtime/test_sink.py::TestRestoring::test_a_source_that_does_not_have_the_rows_that_are_stored"
    ),
    "continue after the stored version": (
        "unit/datasource/realtime/test_sink.py::test_an_older_run_of_the_query_writes_nothing"
    ),
    "create a new table with them and copy the rows": (
        "unit/warehouse/test_adoption.py::test_generated_columns_of_adopted_rows_are_rejected"
    ),
    "set write.parquet.compression-codec": (
        "unit/lake/iceberg/test_file_io.py::test_a_compression_that_cannot_be_written"
    ),
    "restore the file that names it": "unit/storage/test_local.py::test_a_key_leads_nowhere_else",
    "and request none (without": "unit/serve/iceberg/test_vending.py::test_a_lake_that_puts_files_elsewhere_gets_none",
    "see its log": (
        "s3/test_vended_credentials.py::test_a_server_that_may_not_assume_the_role_says_so_without_naming_it"
    ),
    "write the secret to the file, and make it readable for": (
        "unit/storage/remote/test_settings.py::test_a_file_that_cannot_be_read_is_named"
    ),
    "is empty: write the secret into it": (
        "unit/storage/remote/test_settings.py::test_a_file_that_cannot_be_read_is_named"
    ),
    "which Azure takes for a slash": "unit/storage/test_azure.py::test_a_backslash_is_refused",
    "which HDFS does not take": ("unit/storage/test_hdfs.py::test_a_colon_is_refused_before_anything_is_sent"),
    "CANNOT_LISTEN": "unit/service/test_endpoint.py::test_an_address_that_is_taken_is_told",
    "pass position.moved_to(": (
        "unit/read/test_positions.py::TestTail::test_another_history_is_an_error_that_names_the_way_on"
    ),
    "which may be in other files of snapshot": (
        "unit/dml/test_file_rows.py::TestOtherEngines::test_deletes_apply_after_the_snapshot_expired_if_its_files_are_live"
    ),
    "by one without this file": (
        "unit/dml/test_file_rows.py::TestOtherEngines::test_a_snapshot_replaced_under_its_number_is_noticed"
    ),
    "is not in lake snapshot": (
        "unit/dml/test_file_rows.py::TestHistory::test_changes_fail_if_their_snapshot_is_replaced_concurrently"
    ),
    "results derived from them are stale": (
        "unit/datasource/stream/test_deleted_rows.py::test_rows_that_were_read_and_are_deleted_end_the_stream"
    ),
    "the log mixes two histories": "unit/test_mixed_history.py::test_each_way_out_ends_with_a_healthy_table",
    "rebuild the lake from the log with: streamhouse retier": (
        "unit/test_mixed_history.py::test_each_way_out_ends_with_a_healthy_table"
    ),
    "nothing was queued, send these rows ": (
        "unit/write/producer/test_writer.py::test_a_sender_waits_while_too_much_is_in_flight"
    ),
    "one of … in UTF-8": "unit/serve/test_rest_api.py::test_rows_are_written_in_every_form",
    "send new requests with a new key": (
        "unit/serve/test_idempotent_requests.py::test_another_request_with_a_stored_identity_is_422_and_writes_nothing"
    ),
    "send new rows as sequence": (
        "unit/serve/test_idempotent_requests.py::test_another_request_with_a_stored_identity_is_422_and_writes_nothing"
    ),
    "send the missing requests first": (
        "unit/serve/test_idempotent_requests.py::test_a_gap_or_a_step_back_of_a_producer_writes_nothing"
    ),
    "which has the tiered rows, or tier the table first": (
        "unit/serve/iceberg/test_rest_spec.py::TestReadOnlyWarehouses::test_hot_rows_are_an_error_that_names_the_lake_and_the_lake_is_served"
    ),
    "retry later to get its response": (
        "unit/serve/test_idempotent_requests.py::test_a_request_in_flight_is_409_until_it_is_answered"
    ),
    "UNSUPPORTED_MEDIA_TYPE": "unit/serve/test_same_site.py::test_requests_of_the_own_site_are_answered",
    "the connection closed before the end of the body": (
        "unit/serve/test_http_protocol.py::test_a_body_that_ended_early_is_sent_again"
    ),
    "ROW_NOT_FOUND": "unit/serve/test_rest_api.py::test_upserts_deletes_and_lookups",
    "drop it first, or choose another name": (
        "unit/table/versioning/test_tags.py::test_a_name_that_is_taken_is_free_once_it_was_dropped"
    ),
    "since its stream of CHANGES started; restart the query": (
        "unit/datasource/scan/test_changes_clause.py::test_a_batch_has_the_columns_that_its_stream_began_with"
    ),
    "so it is unknown whether this stream returned them; use a new": (
        "unit/dml/test_file_rows.py::TestHistory::test_the_changelog_has_deletes_without_offsets_and_fails_its_streams"
    ),
    "read/change_feed/planning.py OFFSETS_TRIMMED: CHANGES of … from": (
        "unit/read/change_feed/test_commit_changes.py::test_records_that_are_gone"
    ),
    "read/change_feed/change_scan_tasks.py OFFSETS_TRIMMED: CHANGES of … from": (
        "unit/read/change_feed/test_lake_only_rows.py::test_rows_of_expired_snapshots_are_gone"
    ),
    "CONSTRAINT_VIOLATED": (
        "unit/table/test_constraint_validation.py::TestWrites::test_an_append_in_breach_writes_nothing"
    ),
    "Tiered rows are still in the table; …": (
        "unit/read/test_follow.py::TestGaps::test_a_trimmed_position_is_an_error_that_names_the_way_out"
    ),
    "end this follower, and give followers": (
        "unit/read/test_follow.py::TestFencing::test_a_newer_follower_fences_the_older_one"
    ),
    "tag versions while they are new": (
        "unit/table/versioning/test_tags.py::test_a_version_of_which_files_were_marked_gets_none_and_a_later_one_does"
    ),
    "clean the warehouse after the grace period, and copy it then": (
        "unit/warehouse/test_cloning.py::test_a_warehouse_becomes_a_copy_without_its_clones"
    ),
    "write to the table, or create another branch": (
        "unit/table/versioning/test_publication.py::test_a_change_between_the_look_and_the_record_is_found"
    ),
    "Drop the branch, create ": (
        "unit/table/versioning/test_publication.py::test_a_branch_that_removed_rows_is_not_published_behind_changes"
    ),
    "rows into a separate table, check them": (
        "unit/table/versioning/test_branches.py::test_tables_that_cannot_have_branches"
    ),
    "run drop_branch again": ("unit/table/versioning/test_publication.py::test_a_drop_that_was_cut_short_is_finished"),
    "longer than the grace period; create it again": (
        "unit/table/versioning/test_branches.py::test_a_creator_that_sleeps_for_days_is_told"
    ),
    "publish or drop the branches, and copy the warehouse then": (
        "unit/table/versioning/test_branches.py::test_a_warehouse_with_branches_is_moved_and_not_copied"
    ),
    "expired concurrently; choose a later version": (
        "unit/table/versioning/test_tags.py::test_a_tag_that_has_not_seen_an_expiry_is_refused"
    ),
    "rows that were deleted since commit": (
        "unit/table/versioning/test_rollback.py::TestLogTables::test_rows_without_offsets_cannot_come_back_and_a_later_commit_can"
    ),
    "write/producer/accumulator.py WRITER_STOPPED: …": (
        "unit/write/producer/test_writer.py::test_a_closed_writer_accepts_no_rows"
    ),
    "write/producer/writer.py WRITER_STOPPED: …": (
        "faults/test_writer_calls.py::test_every_acknowledged_row_of_a_writer_is_stored_once"
    ),
    "a newer writer has this id": "faults/test_writer_calls.py::test_every_acknowledged_row_of_a_writer_is_stored_once",
    "is the application id of a streaming query; choose another": (
        "unit/write/producer/test_writer.py::test_a_streams_application_id_is_refused"
    ),
    "other processes in a row": (
        "unit/write/producer/test_writer.py::test_writers_that_take_an_id_from_each_other_all_the_time"
    ),
    "log/commit_log.py DIFFERENT_HISTORY: …": (
        "unit/test_histories.py::TestTheLog::test_who_stands_in_the_other_history_writes_nothing"
    ),
    "or drop these partitions again": ("interop/test_restored_lake.py::test_a_lake_of_before_partitions_were_dropped"),
    "Restore both from copies of the same time, or rebuild": (
        "interop/test_restored_lake.py::test_a_catalog_that_does_not_match_its_files_is_an_error"
    ),
    "Tier the table to write these rows again": (
        "unit/lake/paimon/test_commit_races.py::test_a_newest_snapshot_that_is_replaced_later_is_noticed_and_tiered_again"
    ),
    "relocate`; if it is a copy, run": "contract/test_moved.py::test_a_move_is_made_whole",
    "which copies the log into the warehouse": (
        "unit/warehouse/test_log_location.py::TestElsewhere::test_a_copy_gets_a_log_of_its_own"
    ),
    "was deleted or moved by hand; restore": (
        "unit/warehouse/test_log_location.py::TestElsewhere::test_a_folder_of_others_is_not_written"
    ),
    "no longer holds …; was the warehouse deleted?": (
        "unit/warehouse/test_log_location.py::TestElsewhere::test_without_a_warehouse_no_log_is_begun"
    ),
    "belongs to another warehouse or table": (
        "unit/warehouse/test_log_location.py::TestElsewhere::test_a_folder_of_others_is_not_written"
    ),
    "is of another table; restore": (
        "unit/warehouse/test_log_location.py::TestElsewhere::test_a_location_of_another_table_is_noticed"
    ),
    "gives it new ids": "contract/test_moved.py::test_a_copy_gets_an_identity_of_its_own",
    "continue it: `streamhouse": (
        "faults/test_relocation_calls.py::test_a_failed_relocation_is_completed_by_the_same_call"
    ),
    "rebuild the lake of the table from the log: `streamhouse": "contract/test_moved.py::test_a_torn_copy_is_noticed",
    "run relocate again": "faults/test_relocation_calls.py::test_a_failed_relocation_is_completed_by_the_same_call",
    "the adoption did not change its rows, adopt it again": (
        "unit/warehouse/test_adoption.py::test_a_lake_table_that_changes_concurrently_is_not_adopted"
    ),
    "nothing was changed, adopt it again": (
        "unit/warehouse/test_adoption.py::test_a_lake_table_that_changes_concurrently_is_not_adopted"
    ),
    "delete the duplicates, or choose another key": (
        "unit/warehouse/test_keyed_adoption.py::test_duplicate_keys_are_rejected"
    ),
    "omit primary_key to use the existing key": (
        "unit/warehouse/test_keyed_paimon_adoption.py::test_its_own_key_is_the_key"
    ),
    "set the option txnAppId to a name": (
        "spark/test_stream_write.py::test_without_any_identity_the_stream_is_refused"
    ),
    "restart the query from its checkpoint": (
        "spark/test_stream_evolution.py::test_a_query_ends_where_a_new_column_begins_and_a_restart_goes_on_with_it"
    ),
    "create the DataFrame again and start it from its checkpoint": (
        "spark/test_stream_evolution.py::test_a_query_ends_where_a_new_column_begins_and_a_restart_goes_on_with_it"
    ),
    "continue without these rows with failOnDataLoss=false": (
        "unit/datasource/stream/test_bootstrap.py::test_rows_that_were_deleted_meanwhile"
    ),
    "now end at …; start the stream with a new": "unit/advice/test_tables.py::a_stream_from_a_truncated_table",
    "start later, or set failOnDataLoss=false to skip them": (
        "spark/test_stream_read.py::test_lost_rows_fail_the_stream_or_are_skipped"
    ),
    "to upsert, so that the new row replaces": (
        "unit/write/test_upsert_intents.py::TestMerge::test_a_property_makes_an_upsert_of_it"
    ),
    "or set … to another folder": "unit/kv/test_cache_deleted.py::TestUnusable::"
    "test_what_is_not_writable_is_an_error_of_its_own",
    "does not support deletes (": "unit/advice/test_tables.py::deletions_that_a_table_takes_not",
    "set it to true, or omit the table": "unit/advice/test_advice.py::tiering_a_lake_that_is_disabled",
    "commit races to other refreshes": "spark/test_materialize.py::test_a_slower_refresh_changes_nothing",
    "which may change the result of the query; set it to": "spark/test_materialize.py::test_what_a_view_is_not",
    "is a materialized table with another query or mode; drop it": "spark/test_materialize.py::test_what_a_view_is_not",
    "retry when the identity provider": "unit/serve/test_auth.py::test_a_provider_that_is_away",
    "request the right, … =": "unit/serve/test_guard.py::test_clients_reach_only_their_tables_over_http",
    "drop it with DROP VIEW": "spark/test_catalog_views.py::test_a_view_is_created_read_altered_and_dropped",
    "lake, expected Iceberg; create a new table": (
        "unit/table/test_partition_evolution.py::TestTheRecord::test_tables_with_a_fixed_partitioning_reject_a_change"
    ),
    "older lake files are partitioned by it; create a new": (
        "unit/table/test_partition_evolution.py::TestColumns::test_what_lies_by_a_column_keeps_it"
    ),
    "its partitioning was changed since": (
        "unit/table/test_partition_evolution.py::TestVersions::test_older_ones_are_read_and_not_gone_back_to"
    ),
    "enable it with `streamhouse alter": "unit/advice/test_advice.py::the_lake_of_a_table_without_one",
}
"""Words → the test or case that does what they say."""

OTHER_ENGINES = {
    "the engine that wrote",
    "compact it with that engine first",
    "with another engine",
    "with that engine",
    "read it with another engine",
    "change its partition spec",
    "is partitioned by a field within a column",
    "in its own warehouse",
    "copy its rows into a new table",
    "purge it there",
    "rewrite the file with that engine",
    "cannot be adopted: …",
    "rows have a null in the primary key",
    "restore the schema",
    "from its partition spec with the engine that added it",
    "specify its name in the catalog of the lake",
    "specify its <database>.<table>",
    "check whether another engine changed the lake table",
    "lake.iceberg.catalog.* settings",
    "or copy its lake table and adopt that",
}
"""To be done with another engine, or in its catalog. That nothing is changed here is tested beside each."""

MACHINES = {
    "check the disk",
    "check s3.endpoint",
    "check the endpoint",
    "use a local disk",
    "file system lets link(2) replace",
    "choose another path",
    "set STREAMHOUSE_CACHE_DIR to",
    "end these processes",
    "use a store",
    "set the clock (NTP)",
    "write smaller batches",
}
"""To be done about a machine or a store, which a test of tables cannot."""

RUN_AGAIN = {
    "retry the round",
    "retry",
    "retry the query",
    "run the statement again",
    "nothing was expired, ",
    "run it again",
    "run maintenance again",
    "try again",
    "run the query again",
    "Drop the partition again",
    "copy the warehouse again",
    "copy it again while nothing writes",
}
"""The same call once more, which the test beside each refusal makes, or which cannot fail twice for the reason."""

RESTORED = {"restore the warehouse", "restore the record", "restore the snapshot", "restore it"}
"""Bytes that are put back, as in the cases of damage."""

NO_ADVICE = {
    "storage/s3/storage.py STORAGE: cannot write …: …",
    "report this",
    "run streamhouse verify",
    "restore the property from an older metadata file",
    "has no tag",
    "is the lake of table",
    "committed before that of",
    "belong to queries",
    "it has a primary key; nothing was written, upsert the rows",
    "the tablet has the changes up to offset",
    "was found damaged … times in a row",
    "they are not in ascending order",
    "was the cache deleted?",
    "kv/lmdb/environment.py CORRUPT_DATA: …: …",
    "was truncated or overwritten by commit",
    "the rows of offsets …",
    "found offset …, expected …",
    "holds …, expected",
    "the hot log starts at",
    "checkpoint is empty, expected a directory",
    "the stream of flights ended",
    "cli/spark_session.py JAVA_NOT_FOUND: …; …",
    "choose one, or disable the lake",
    "log/state.py CORRUPT_DATA: record …",
    "does not exist",
    "…/… exists",
    "… exists",
}
"""They say what was found; what is advised is said by who catches them, or there is nothing to do about it."""

SQL = {
    "ALTER TABLE …",
    "use ALTER TABLE",
    "match them by position; use df.writeTo(…)",
    "INSERT INTO, or a table without a merge engine",
    "INSERT rows with new keys",
    "use MERGE, or DELETE and INSERT",
    "set them on tables",
    "is not supported; use TBLPROPERTIES",
    "outputMode('append')",
    "create it with CREATE DATABASE",
    "start the stream with a new checkpoint",
    "start with a new checkpoint",
    "or add a column of integers",
    "add a field or remove the struct",
    "use a shorter default, or set the value in each row",
    "add another column to the key",
    "add a suffix",
    "is not a copy: it was written at this location",
    "no warehouse to relocate",
}
"""Another statement or argument: said in words of SQL, and no way out of a state of a table."""


WAY_OUT = re.compile(
    r"retier|relocate --|checkpointLocation|failOnDataLoss|onDifferentHistory|forget_transactions|txnAppId"
    r"|Table\.append|set it to true|delete this file|allow_loss"
)
"""What takes a table or stream out of trouble: always to be followed, whatever else a text says."""


def is_followed(text: ErrorText) -> bool:
    if any(advice.condition == text.condition and advice.words in text.text for advice in CASES):
        return True
    whole = f"{text.where.partition(':')[0]} {text.condition}: {text.text}"
    return any(words in whole for words in ELSEWHERE)


def advising() -> Iterator[ErrorText]:
    """Those that ask for something that a test of tables can do."""
    for text in error_texts():
        is_argument = text.condition in ARGUMENTS and not ASKS_FOR_MORE.search(text.text)
        if text.condition == "MISSING_EXTRA" or is_argument:
            continue
        whole = f"{text.where.partition(':')[0]} {text.condition}: {text.text}"
        if WAY_OUT.search(text.text) or not any(
            words in whole for words in OTHER_ENGINES | MACHINES | RUN_AGAIN | RESTORED | NO_ADVICE | SQL
        ):
            yield text


def test_every_advice_of_an_error_is_followed_by_a_test():
    assert [f"{t.where} {t.condition}: {t.text}" for t in advising() if not is_followed(t)] == []


@pytest.mark.parametrize("named", sorted(set(ELSEWHERE.values())))
def test_a_named_test_exists(named):
    path, *parents, name = named.split("::")
    found: list[ast.AST] = [ast.parse((TESTS / path).read_text())]
    for parent in parents:
        found = [c for f in found for c in ast.walk(f) if isinstance(c, ast.ClassDef) and c.name == parent]
    assert [f for top in found for f in ast.walk(top) if isinstance(f, ast.FunctionDef) and f.name == name]


@pytest.mark.parametrize(
    "words", sorted({a.words for a in CASES} | {*ELSEWHERE, *OTHER_ENGINES, *MACHINES, *RUN_AGAIN, *NO_ADVICE, *SQL})
)
def test_the_listed_words_are_in_an_error_text(words):
    whole = (f"{t.where.partition(':')[0]} {t.condition}: {t.text}" for t in error_texts())
    assert any(words in text for text in whole)
