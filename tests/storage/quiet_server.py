"""A threaded HTTP server for tests."""

from __future__ import annotations

import http.server


class QuietServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""
