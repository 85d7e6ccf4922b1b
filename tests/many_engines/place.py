"""Where the warehouse of a run is: a folder, or a bucket of a store. Each process of a run reads it from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from streamhouse_spark import Warehouse


@dataclass(frozen=True)
class Place:
    url: str
    settings: dict[str, str] = field(default_factory=dict)

    def open(self) -> Warehouse:
        return Warehouse(self.url, self.settings)

    @property
    def options(self) -> list[str]:
        """Those of a command, by which it opens the warehouse."""
        settings = [f"--setting={key}={value}" for key, value in self.settings.items()]
        return ["-w", self.url, *settings]


def place_of(folder: Path) -> Place:
    """Return the place of the run that has this folder; a folder in it where nobody put another one."""
    file = folder / "place.json"
    return Place(**json.loads(file.read_text())) if file.exists() else Place(str(folder / "warehouse"))


@contextmanager
def place_on_s3(folder: Path) -> Iterator[None]:
    """Put the warehouse of this run into a bucket of MinIO, whose files are in the folder."""
    from stores.servers import minio

    (objects := folder / "minio").mkdir()
    with minio(objects) as store:
        place = Place(store.new_url(), dict(store.settings))
        (folder / "place.json").write_text(json.dumps(asdict(place)))
        yield
