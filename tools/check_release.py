"""Build a release into ``dist/``, check it, install it from an index of its own, and run the README's quickstart.

The index listens on loopback and has only these files; everything else comes from the usual index. Each environment is
made empty: without extras it runs a table in Python, with ``spark`` and ``iceberg`` the quickstart. Their packages
become the bill of materials (CycloneDX) in ``dist/sbom``. ``--version`` is the version that the tag says.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
TOOLS = Path(sys.executable).parent
SBOM = DIST / "sbom" / "streamhouse-spark.cdx.json"
NAME = "streamhouse-spark"
OLDEST, NEWEST = "3.11", "3.13"
WITHOUT_EXTRAS = """
import streamhouse_spark as sh
orders = sh.Warehouse("warehouse").create_table("sales.orders", "order_id BIGINT, customer STRING")
orders.append([{"order_id": 1, "customer": "ann"}])
assert orders.to_arrow().num_rows == 1
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", help="fail if the package has another version")
    version = parser.parse_args(arguments).version
    shutil.rmtree(DIST, ignore_errors=True)
    run(TOOLS / "uv", "build", "--quiet", "--out-dir", DIST)
    (DIST / ".gitignore").unlink(missing_ok=True)
    files = sorted(DIST.iterdir())
    report(f"built {', '.join(file.name for file in files)}")
    if version and any(
        not file.name.startswith(f"streamhouse_spark-{version}{end}")
        for file, end in zip(files, ("-", ".tar"), strict=True)
    ):
        sys.exit(f"the tag says version {version}, but {files[0].name} was built; change __version__ or the tag")
    run(TOOLS / "twine", "check", "--strict", *files)
    with tempfile.TemporaryDirectory(prefix="release-") as folder, index_of(files, Path(folder)) as url:
        for python in (OLDEST, NEWEST):
            check_install(Path(folder, python), url, python, "", WITHOUT_EXTRAS)
            check_install(Path(folder, f"{python}-spark"), url, python, "[spark,iceberg]", quickstart())
        describe(Path(folder, f"{NEWEST}-spark"))
    return 0


@contextmanager
def index_of(files: Sequence[Path], folder: Path) -> Iterator[str]:
    """Serve the files as a package index (PEP 503) on loopback and yield its URL."""
    project = folder / "index" / NAME
    project.mkdir(parents=True)
    for file in files:
        shutil.copy(file, project)
    links = "".join(f'<a href="{file.name}">{file.name}</a>' for file in files)
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    handler = partial(_QuietHandler, directory=str(folder / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        pass


def check_install(folder: Path, url: str, python: str, extras: str, code: str) -> None:
    """Install the wheel into an empty environment, and run the code and the command line there."""
    environment = folder / "environment"
    run(TOOLS / "uv", "venv", "--quiet", "--no-python-downloads", "--python", python, environment)
    binary = environment / "bin" / "python"
    run(TOOLS / "uv", "pip", "install", "--quiet", "--python", binary, "--index", url, f"{NAME}{extras}")
    run(environment / "bin" / "streamhouse", "--version")
    run(binary, "-c", code, cwd=folder)
    run(environment / "bin" / "streamhouse", "tutorial", "--terminal", cwd=folder)
    run(environment / "bin" / "streamhouse", "-w", "warehouse", "head", "sales.orders", cwd=folder)
    report(f"Python {python}, {NAME}{extras}: works")


def quickstart() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return str(code)


def describe(folder: Path) -> None:
    """Write the bill of materials of an environment."""
    SBOM.parent.mkdir()
    command = ["environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library", "--output-reproducible"]
    run(TOOLS / "cyclonedx-py", *command, "--output-file", SBOM, folder / "environment" / "bin" / "python")
    report(f"described its packages in {SBOM.relative_to(ROOT)}")


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with code {done.returncode}")


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
