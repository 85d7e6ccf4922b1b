"""The choice of segments to merge: adjacent ones of one bucket and schema, up to a size."""

from __future__ import annotations

from streamhouse_spark.log import compaction
from streamhouse_spark.log.compaction import plan_inline_merge, plan_small_merge
from unit.log.states import appended, segment


def chain(*sizes: int, uuid: bool = True, bucket: int = 0, schema_ids: tuple[int, ...] = ()) -> list:
    made = []
    for at, size_bytes in enumerate(sizes):
        made.append(
            segment(at, 1, bucket=bucket, commit=2 + at, uuid=f"s{at}" if uuid else None, size_bytes=size_bytes,
                    schema_id=schema_ids[at] if schema_ids else 1)
        )  # fmt: skip
    return made


def spans(runs) -> list[tuple[int, int, int]]:
    return [(r.bucket, r.start, r.end) for r in runs]


def test_inline_rows_are_merged_whatever_their_number():
    mixed = [segment(0, 2), segment(2, 1), segment(3, 5, uuid="a"), segment(8, 1)]
    assert spans(plan_inline_merge(appended(*mixed))) == [(0, 0, 3), (0, 8, 9)]
    assert plan_inline_merge(appended(segment(0, 5, uuid="a"))) == []


def test_small_segments_are_merged_where_enough_of_them_are_adjacent():
    assert spans(plan_small_merge(appended(*chain(*[100] * 8)))) == [(0, 0, 8)]
    assert plan_small_merge(appended(*chain(*[100] * 7))) == []
    split_by_large = [*[100] * 8, compaction.SMALL_SEGMENT_BYTES, *[100] * 9]
    assert spans(plan_small_merge(appended(*chain(*split_by_large)))) == [(0, 0, 8), (0, 9, 18)]


def test_a_run_ends_where_the_schema_changes():
    state = appended(*chain(*[100] * 6, schema_ids=(1, 1, 1, 2, 2, 2)))
    assert spans(plan_small_merge(state, 2)) == [(0, 0, 3), (0, 3, 6)]


def test_merged_segments_are_bounded():
    size_bytes = compaction.SMALL_SEGMENT_BYTES - 1
    state = appended(*chain(*[size_bytes] * 40))
    runs = plan_small_merge(state, 2)
    assert sum(r.end - r.start for r in runs) == 40
    for run in runs:
        assert sum(s.size_bytes for s in run.segments) <= compaction.MERGED_BYTES_MAX


def test_buckets_do_not_mix():
    state = appended(*chain(100, 100), *chain(100, 100, bucket=1), buckets=2)
    assert spans(plan_small_merge(state, 2)) == [(0, 0, 2), (1, 0, 2)]
