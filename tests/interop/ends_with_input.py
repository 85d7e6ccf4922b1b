"""``python ends_with_input.py COMMAND…`` starts a command, and ends it as soon as its own input is closed.

The system closes it where the process at the other end was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

ENDING_S_MAX = 30


def main(command: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def follow() -> None:
        os._exit(process.wait())

    try:
        threading.Thread(target=follow, daemon=True).start()
        sys.stdin.buffer.read()
    finally:
        process.terminate()
        try:
            process.wait(ENDING_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
