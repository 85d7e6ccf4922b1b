"""The image and the manifests fit the program: its options, its version, its jar.

`make deploy-check` checks the chart.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

import streamhouse_spark as sh
from doc_pages import ROOT
from streamhouse_spark.cli.app import streamhouse
from streamhouse_spark.service.endpoint import parse_address

DEPLOY = ROOT / "deploy"
OBJECTS = {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "kubernetes" / "tiering.yaml").read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
DOCKERFILE = (DEPLOY / "image" / "Dockerfile").read_text()


def test_the_pod_runs_a_command_that_exists():
    name, *arguments = CONTAINER["args"]
    parsed = streamhouse.commands[name].make_context(name, arguments).params
    port = CONTAINER["ports"][0]["containerPort"]
    assert parse_address(parsed["listen"]) == ("0.0.0.0", port)
    assert not parsed["once"]
    assert OBJECTS["Service"]["spec"]["ports"][0]["port"] == port
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(port)


def test_all_objects_select_the_pods():
    labels = POD["metadata"]["labels"].items()
    budget = OBJECTS["PodDisruptionBudget"]["spec"]
    selectors = [OBJECTS["Deployment"]["spec"]["selector"]["matchLabels"], OBJECTS["Service"]["spec"]["selector"]]
    for selector in (*selectors, budget["selector"]["matchLabels"]):
        assert selector
        assert selector.items() <= labels
    assert budget["maxUnavailable"] < OBJECTS["Deployment"]["spec"]["replicas"]


def test_the_image_has_the_user_folders_and_port_of_the_pod():
    user = POD["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}\n" in DOCKERFILE
    mounts = {volume["mountPath"] for volume in CONTAINER["volumeMounts"]}
    home, cache = re.findall(r"(?:HOME|STREAMHOUSE_CACHE_DIR)=(\S+)", DOCKERFILE)
    assert {home, cache} == mounts, "nothing else can be written where the file system is read-only"
    assert f"EXPOSE {CONTAINER['ports'][0]['containerPort']}\n" in DOCKERFILE
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]


def test_the_image_installs_java_and_spark_for_view_refreshes():
    """The chart's `views.enabled` runs Spark in the pod. It is off, as it needs more memory."""
    chart = yaml.safe_load((DEPLOY / "helm" / "streamhouse-tiering" / "values.yaml").read_text())
    assert not chart["views"]["enabled"]
    assert "--views" not in CONTAINER["args"]
    assert re.search(r"install .*openjdk-(17|21)-jre-headless", DOCKERFILE)
    assert re.search(r"streamhouse_spark-\*\.whl\)\[spark,", DOCKERFILE)
    assert "PYSPARK_PYTHON=/opt/streamhouse/bin/python" in DOCKERFILE
    assert "hadoop-aws" not in DOCKERFILE, "or the page of clusters, which says that Python reads the lake, is wrong"


def test_versions_are_those_of_the_package():
    chart = yaml.safe_load((DEPLOY / "helm" / "streamhouse-tiering" / "Chart.yaml").read_text())
    application = yaml.safe_load((DEPLOY / "kubernetes" / "spark-application.yaml").read_text())["spec"]
    assert chart["appVersion"] == chart["version"] == sh.__version__
    assert CONTAINER["image"] == application["image"] == f"streamhouse-spark:{sh.__version__}"
    jar = application["sparkConf"]["spark.jars"].partition("site-packages/")[2]
    assert (Path(sh.__file__).parent.parent / jar).is_file()
    assert f"pyspark=={application['sparkVersion']}\n" in (DEPLOY.parent / "constraints.txt").read_text()
    python = re.search(r"/python(3\.\d+)/", application["sparkConf"]["spark.jars"])[1]
    assert f"python:{python}-" in DOCKERFILE


def test_manifests_contain_no_secret():
    """Secrets come from environment variables of objects that the manifests only name."""
    assert [source["secretRef"]["name"] for source in CONTAINER["envFrom"]] == ["streamhouse-s3"]
    for path in (DEPLOY / "kubernetes").iterdir():
        assert not re.search(r"(?i)(secret[-_]?access|password|session-token)\S*\s*[:=]\s*\S", path.read_text()), path
