"""One engine that asks until the run is over, and checks each answer at once: ``python -m many_engines.reader``.

Prints a line of JSON for each query: its milliseconds, and `wrong` or `error` with a text where it was not right.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random

from many_engines.checks import Acknowledged, Checks, WrongAnswerError
from many_engines.engines import Addresses
from many_engines.kinds import KINDS
from many_engines.written import CHOICES

RECENT = 60
"""Writes that a question about recent rows goes back, at most."""


def read(engine: str, at: Addresses, folder: Path, seconds: float, seed: int) -> None:
    kind, random, checks = KINDS[engine], Random(seed), Checks()
    acknowledged, opened = Acknowledged(folder / "acknowledged"), kind.open(at)
    for table in CHOICES:  # what is loaded by the first query is no time of an answer
        opened.ask(table, 1)
    say({"opened": engine})
    sys.stdin.readline()  # until all are open
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        table = random.choice(CHOICES)
        newest = acknowledged.get(table)
        at_least = newest if kind.is_fresh else 0
        known = newest if kind.is_fresh else checks.last[table]
        is_filtered = not kind.asks_all or random.random() < 0.4
        since = max(1, known - random.randrange(1, RECENT)) if is_filtered else 0
        began = time.monotonic()
        try:
            answer = tuple(opened.ask(table, since))
            took_ms = round(1000 * (time.monotonic() - began), 1)
            state = checks.check(table, answer, since, at_least, acknowledged.get(table))
            say({"ms": took_ms, "table": table, "state": state})
        except (WrongAnswerError, AssertionError) as error:
            say({"ms": round(1000 * (time.monotonic() - began), 1), "table": table, "wrong": str(error)})
        except Exception as error:  # noqa: BLE001 - each kind is counted
            say({"table": table, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"})
            time.sleep(0.2)


def say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    read(asked["engine"], Addresses(**asked["at"]), Path(asked["folder"]), asked["seconds"], asked["seed"])
