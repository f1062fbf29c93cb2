"""Something that takes what is pushed to it, for tests that need no real Pushgateway."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from tests.monitoring.servers import LOOPBACK

__all__ = ["Gateway"]


class Gateway:
    """Remembers what is pushed to it, and answers with a status."""

    def __init__(self, status: int = 200) -> None:
        self.pushed: list[tuple[str, str, str]] = []
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                gateway.pushed.append((self.command, self.path, body))
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = HTTPServer((LOOPBACK, 0), Handler)
        self.url = f"http://{LOOPBACK}:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
