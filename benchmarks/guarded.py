"""``python guarded.py COMMAND …``: runs a command until it ends, or until the input of this process does.

Whoever starts it holds the other end of its input. However that process ends, killed or not, the pipe closes then, and
the command is ended with it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

GRACE_SECONDS = 10


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: who started this one says when
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def end_with_input() -> None:
        sys.stdin.buffer.read()
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()

    threading.Thread(target=end_with_input, daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
