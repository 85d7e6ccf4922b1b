"""The lake in catalogs that are servers: PostgreSQL, and Iceberg's own REST server. `make catalogs` runs this.

PostgreSQL is the system's (``initdb`` and ``pg_ctl`` on the PATH or in STREAMHOUSE_TEST_POSTGRES), started here in a
folder of its own. The jars of the REST server come from Maven Central, by Maven.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from requests import RequestException
from requests import get as http_get

from interop import catalog_cases as cases
from kit.network import free_port

pytestmark = pytest.mark.catalogs

ICEBERG = "1.10.0"
POM = Path(__file__).parent / "rest_server_pom.xml"


# -- PostgreSQL -------------------------------------------------------------------------------------------------------


def postgres_program(name: str) -> str:
    folders = [os.environ.get("STREAMHOUSE_TEST_POSTGRES", ""), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    found = next((p for folder in folders if folder and (p := Path(folder) / name).exists()), None)
    program = str(found) if found is not None else shutil.which(name)
    assert program, f"{name} of PostgreSQL was not found; install it, or name its folder in STREAMHOUSE_TEST_POSTGRES"
    return program


def as_postgres(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.geteuid() == 0 else command


@pytest.fixture(scope="module")
def postgres(tmp_path_factory) -> Iterator[str]:
    """The address of a server with nothing in it; what follows a database's name is appended."""
    folder = Path(subprocess.check_output(as_postgres(["mktemp", "-d"]), text=True).strip())
    port, data = free_port(), str(folder / "data")
    quick = "-c fsync=off -c full_page_writes=off"
    options = f"-p {port} -k {folder} -h 127.0.0.1 {quick}"
    control = postgres_program("pg_ctl")
    init = [postgres_program("initdb"), "-D", data, "-U", "iceberg", "-A", "trust"]
    subprocess.run(as_postgres(init), check=True, capture_output=True, cwd="/")
    log = str(folder / "log")
    subprocess.run(as_postgres([control, "-D", data, "-l", log, "-o", options, "-w", "start"]), check=True, cwd="/")
    try:
        yield f"postgresql+psycopg2://iceberg@127.0.0.1:{port}/"
    finally:
        subprocess.run(as_postgres([control, "-D", data, "-m", "immediate", "stop"]), check=True, cwd="/")
        subprocess.run(as_postgres(["rm", "-r", str(folder)]), check=True, cwd="/")


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_a_lake_lives_in_a_catalog_in_postgresql(case, postgres, tmp_path, own_cache):
    from sqlalchemy import create_engine, text

    database = f"d{time.monotonic_ns()}"
    engine = create_engine(f"{postgres}postgres", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {database}"))
    engine.dispose()
    settings = {
        "lake.iceberg.catalog.type": "sql",
        "lake.iceberg.catalog.uri": f"{postgres}{database}",
        "lake.iceberg.catalog.warehouse": str(tmp_path / "lake"),
    }
    case(tmp_path, settings)


# -- the REST server of Iceberg's Java library ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def classpath(tmp_path_factory) -> str:
    assert shutil.which("mvn"), "Maven was not found, which fetches the REST server's jars; install it"
    folder = tmp_path_factory.mktemp("rest-server")
    shutil.copy(POM, folder / "pom.xml")
    command = ["mvn", "-q", "-B", "dependency:build-classpath", "-Dmdep.outputFile=classpath", f"-Diceberg={ICEBERG}"]
    subprocess.run(command, cwd=folder, check=True, timeout=900)
    return (folder / "classpath").read_text()


@pytest.fixture
def java_rest(classpath, tmp_path) -> Iterator[dict[str, str]]:
    port = free_port()
    environ = {
        **os.environ,
        "CATALOG_WAREHOUSE": str(tmp_path / "lake"),
        "CATALOG_URI": f"jdbc:sqlite:{tmp_path}/server.db",
        "CATALOG_REST_PORT": str(port),
    }
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            ["java", "-cp", classpath, "org.apache.iceberg.rest.RESTCatalogServer"], env=environ, stdout=log, stderr=log
        )
        try:
            wait_until_up(f"http://127.0.0.1:{port}/v1/config", server, tmp_path / "server.log")
            yield {"lake.iceberg.catalog.type": "rest", "lake.iceberg.catalog.uri": f"http://127.0.0.1:{port}"}
        finally:
            server.terminate()
            server.wait(30)


def wait_until_up(url: str, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if http_get(url, timeout=5).ok:
                return
        except RequestException:
            time.sleep(0.2)
    raise AssertionError(f"the REST server did not start: {log.read_text()[-2000:]}")


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_in_the_rest_server_of_iceberg(case, java_rest, tmp_path, own_cache):
    case(tmp_path, java_rest)
