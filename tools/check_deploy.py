"""Render the Helm chart and check it: by Helm's linter, Kubernetes' schemas, and the plain manifest beside it.

``python tools/check_deploy.py HELM`` checks; with ``--write`` it writes ``deploy/kubernetes/tiering.yaml`` first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import yaml

from streamhouse_spark.cli.app import streamhouse

DEPLOY = Path(__file__).parent.parent / "deploy"
CHART = DEPLOY / "helm" / "streamhouse-tiering"
PLAIN = DEPLOY / "kubernetes" / "tiering.yaml"
OLDEST, NEWEST = "1.25", "1.33"
"""Versions of Kubernetes that the chart is checked for."""
FULL = [
    "--set=metrics.serviceMonitor=true",
    "--set=tables={sales.orders,sales.items}",
    "--set=image.digest=sha256:" + "0" * 64,
    "--set=serviceAccount.annotations.role=x",
    "--set=podAnnotations.team=x",
    "--set=imagePullSecrets[0].name=x",
    "--set=env[0].name=A",
    "--set=env[0].value=b",
    "--set=nodeSelector.disk=fast",
    "--set=tolerations[0].key=spot",
    "--set=tolerations[0].operator=Exists",
    "--set=views.enabled=true",
    "--set=views.master=local[4]",
    "--set=views.driverMemory=2g",
]
"""Each value that is empty by default, and each switch that is off."""
REFUSED = [
    ["--set=warehouse="],
    ["--set=warehouse=/data/warehouse"],
    ["--set=replicas=0"],
    ["--set=unknown=1"],
    ["--set=settings.s3\\.secret-access-key=x"],
    ["--set=views.enabled=true", "--set=views.master=k8s://https://kubernetes.default"],
    ["--set=views.enabled=true", "--set=views.master=spark://host:7077"],
    ["--set=views.enabled=true", "--set=views.master="],
    ["--set=views.driverMemory=much"],
    ["--set=views.unknown=1"],
]
HEADER = "# Written by `make manifests` from the chart beside this, with the values of values.yaml.\n"


def main(helm: str, *, write: bool) -> None:
    values = ["--values", str(DEPLOY / "kubernetes" / "values.yaml")]
    _run(helm, "lint", "--strict", str(CHART), *values)
    rendered = HEADER + _render(helm, NEWEST, *values)
    if write:
        PLAIN.write_text(rendered)
    if PLAIN.read_text() != rendered:
        sys.exit(f"{PLAIN} is not what the chart renders; run `make manifests`")
    checked = 0
    for version in (OLDEST, NEWEST):
        for more in ([], FULL):
            rendered = _render(helm, version, *values, *more)
            checked += _validate(rendered, version)
            _require_views(rendered, is_wanted=bool(more))
    for wrong in REFUSED:
        if _helm(helm, NEWEST, *values, *wrong).returncode == 0:
            sys.exit(f"the chart takes {wrong}, and should refuse it")
    sys.stdout.write(
        f"{checked} objects are valid for Kubernetes {OLDEST} and {NEWEST}; {len(REFUSED)} wrong values are refused\n"
    )


def _render(helm: str, version: str, *values: str) -> str:
    done = _helm(helm, version, *values)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def _helm(helm: str, version: str, *values: str) -> subprocess.CompletedProcess[str]:
    name = ["streamhouse-tiering", "--namespace", "streamhouse", "--kube-version", f"{version}.0"]
    return subprocess.run([helm, "template", *name, str(CHART), *values], capture_output=True, text=True, check=False)


def _validate(rendered: str, version: str) -> int:
    """Check each object, those of operators but for their kind; returns the number of objects."""
    objects = [found for found in yaml.safe_load_all(rendered) if found is not None]
    kinds = {found["kind"] for found in objects}
    if not kinds >= {"Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}:
        sys.exit(f"the chart renders {sorted(kinds)} only")
    for found in objects:
        if found["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(found, version, strict=True)
    return len(objects)


def _require_views(rendered: str, *, is_wanted: bool) -> None:
    """Check that the service refreshes views where that is wanted, by a command line that the program takes."""
    (deployment,) = (found for found in yaml.safe_load_all(rendered) if found and found["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    name, *arguments = container["args"]
    parsed = streamhouse.commands[name].make_context(name, arguments).params
    heap = {variable["name"]: variable.get("value") for variable in container.get("env", [])}.get("PYSPARK_SUBMIT_ARGS")
    told = parsed["views"], parsed["master"], heap, [*parsed["tables"]]
    wanted = (
        (True, "local[4]", "--driver-memory 2g pyspark-shell", ["sales.orders", "sales.items"])
        if is_wanted
        else (False, None, None, [])
    )
    if told != wanted:
        sys.exit(f"the pod is to run with {wanted}, and would with {told}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main(sys.argv[1], write="--write" in sys.argv)
