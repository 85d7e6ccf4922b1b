"""Metrics of the views that a service refreshes, labelled by the view's table like the service's other metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from streamhouse_spark.metrics.metrics import Metric
from streamhouse_spark.views.service import ViewStatus

GAUGES: Final[dict[str, tuple[str, Callable[[ViewStatus], float]]]] = {
    "streamhouse_view_commits_behind": ("Commits of its sources that it has not seen.", lambda v: v.commits_behind),
    "streamhouse_view_rows_behind": ("Rows or changes of its sources that it lacks.", lambda v: v.rows_behind),
    "streamhouse_view_lag_seconds": ("Age of the oldest change that it lacks.", lambda v: v.lag_ms / 1000),
    "streamhouse_view_freshness_seconds": ("Time between two refreshes: freshness.", lambda v: v.freshness_ms / 1000),
    "streamhouse_view_failures": ("Failures since the last refresh that succeeded.", lambda v: v.failures),
    "streamhouse_view_last_refresh_seconds": (
        "Duration of the last refresh that succeeded.",
        lambda v: v.last_duration_ms / 1000,
    ),
    "streamhouse_view_refreshing_seconds": (
        "Time since the step under way began; 0 without one.",
        lambda v: v.refreshing_ms / 1000,
    ),
    "streamhouse_view_paused": ("1 while it is paused.", lambda v: v.doing == "paused"),
}
COUNTERS: Final[dict[str, tuple[str, Callable[[ViewStatus], float]]]] = {
    "streamhouse_view_refreshes": ("Refreshes that made a commit.", lambda v: v.refreshes),
    "streamhouse_view_rows_written": ("Rows that refreshes wrote.", lambda v: v.rows_written),
    "streamhouse_view_rows_deleted": ("Rows that refreshes deleted.", lambda v: v.rows_deleted),
    "streamhouse_view_whole_computations": ("Refreshes that computed the whole query.", lambda v: v.whole),
}
"""Names without ``_total``, which the format adds."""


def view_measures(views: Sequence[ViewStatus]) -> list[Metric]:
    """Return the metrics of views. Counters start with the service."""
    return [
        *(
            Metric(name, text, "gauge", ("table",), [((view.name,), float(value(view))) for view in views])
            for name, (text, value) in GAUGES.items()
        ),
        *(
            Metric(name, text, "counter", ("table",), [((view.name,), float(value(view))) for view in views])
            for name, (text, value) in COUNTERS.items()
        ),
        Metric(
            "streamhouse_view_doing",
            "1 for what is done with it.",
            "gauge",
            ("table", "doing"),
            [((view.name, view.doing), 1) for view in views],
        ),
    ]
