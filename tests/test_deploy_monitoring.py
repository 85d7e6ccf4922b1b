"""Probes, alerts and the dashboard ask for paths, metrics and labels that the running processes serve."""

from __future__ import annotations

import json
import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import streamhouse_spark as sh
from kit.serving import http_client
from streamhouse_spark.serve.app import make_app
from streamhouse_spark.service.endpoint import serve_until_exit
from streamhouse_spark.service.tiering_service import TableStatus
from streamhouse_spark.views.service import ViewStatus, make_view_metrics
from unit.service.test_endpoint import LOOPBACK, Observed, get

DEPLOY = Path(__file__).parent.parent / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboard.json").read_text())
QUERIES = [rule["expr"] for rule in RULES] + [
    target["expr"].replace("$__rate_interval", "5m").replace("$table", ".*")
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
OF_PROMETHEUS = {"instance", "job"}


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Name of each sample that the two processes answer → its labels."""
    warehouse = sh.Warehouse(str(tmp_path_factory.mktemp("wh")))
    warehouse.create_table("sales.orders", "id BIGINT")
    client = http_client(make_app(warehouse))
    client.post("/api/v1/tables/sales.orders/rows", json=[{"id": 1}])
    views = lambda: make_view_metrics([ViewStatus("gold.revenue", 1000, 0)])  # noqa: E731
    with serve_until_exit(Observed(tables=[TableStatus("sales.orders")]), LOOPBACK, views) as address:
        text = client.get("/metrics").text, get(address, "/metrics")[1]
    families = [family for one in text for family in text_string_to_metric_families(one)]
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_promql_over_metrics_of_ours(metrics, query):
    promql_parser.parse(query)
    names = set(re.findall(r"streamhouse_\w+", query))
    assert names
    assert names <= metrics.keys()
    grouped = {
        label for part in re.findall(r"(?:by|without|ignoring) ?\(([^)]*)\)", query) for label in part.split(", ")
    }
    matched = set(re.findall(r"(\w+)=~?\"", query))
    known = OF_PROMETHEUS.union(*(metrics[name] for name in names))
    assert grouped | matched <= known


def test_texts_name_labels_that_their_query_has(metrics):
    for rule in RULES:
        names = set(re.findall(r"streamhouse_\w+", rule["expr"]))
        known = OF_PROMETHEUS.union(*(metrics[name] for name in names))
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            names = set(re.findall(r"streamhouse_\w+", target["expr"]))
            known = OF_PROMETHEUS.union(*(metrics[name] for name in names))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known, panel["title"]


def test_every_metric_of_a_table_is_on_the_dashboard_or_in_an_alert(metrics):
    shown = set(re.findall(r"streamhouse_\w+", " ".join(QUERIES)))
    left_out = {name for name in metrics if name.startswith("streamhouse_table_")} - shown
    assert left_out == {"streamhouse_table_doing", "streamhouse_table_version"}


def test_every_metric_of_a_view_is_on_the_dashboard_or_in_an_alert(metrics):
    shown = set(re.findall(r"streamhouse_\w+", " ".join(QUERIES)))
    left_out = {name for name in metrics if name.startswith("streamhouse_view_")} - shown
    assert left_out == {"streamhouse_view_doing", "streamhouse_view_refreshing_seconds"}


def test_panels_do_not_lie_on_each_other():
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
def test_probes_ask_for_paths_that_the_endpoint_serves(probe):
    objects = yaml.safe_load_all((DEPLOY / "kubernetes/tiering.yaml").read_text())
    (pod,) = (found["spec"]["template"] for found in objects if found["kind"] == "Deployment")
    (container,) = pod["spec"]["containers"]
    with serve_until_exit(Observed(), LOOPBACK) as address:
        assert get(address, container[probe]["httpGet"]["path"])[0] == 200
        assert get(address, pod["metadata"]["annotations"]["prometheus.io/path"])[0] == 200
