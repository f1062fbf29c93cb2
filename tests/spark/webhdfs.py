"""A tiny WebHDFS name node and data node in one: a real remote Hadoop file system for the tests, faults included.

Only what reading takes. The protocol is Hadoop's WebHDFS REST API, version 1, but for the content type: the Hadoop
client of pyspark's wheel lacks the class that reads it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

MODIFIED_MS = 1_700_000_000_000


class FakeWebHdfs:
    """Serves `files` (absolute path -> bytes) on a free port of this machine.

    Attributes:
        denied: paths that may not be read; their permission says so.
        gone: paths that are listed but whose content cannot be opened.
        broken: folders that cannot be listed.
        failing: path -> how its next read fails, once: "503", "hang up" (no answer) or "half" (of the content).
        calls: (operation, path) -> how often.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.denied: set[str] = set()
        self.gone: set[str] = set()
        self.broken: set[str] = set()
        self.failing: dict[str, str] = {}
        self.calls: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"node": self})
        self._server = ThreadingHTTPServer(("localhost", 0), handler)
        self._server.daemon_threads = False
        self.address = f"localhost:{self._server.server_address[1]}"
        self.uri = f"webhdfs://{self.address}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def status(self, path: str) -> dict[str, object] | None:
        is_folder = path == "/" or any(name.startswith(path.rstrip("/") + "/") for name in self.files)
        if path not in self.files and not is_folder:
            return None
        return {
            "pathSuffix": "",
            "type": "DIRECTORY" if is_folder else "FILE",
            "length": 0 if is_folder else len(self.files[path]),
            "modificationTime": MODIFIED_MS,
            "accessTime": 0,
            "owner": "somebody",
            "group": "them",
            "permission": "600" if path in self.denied else "644",
            "blockSize": 1 << 27,
            "replication": 1,
            "fileId": 1,
            "childrenNum": 0,
            "storagePolicy": 0,
        }

    def children(self, folder: str) -> list[str]:
        base = folder.rstrip("/") + "/"
        return sorted({name[len(base) :].split("/")[0] for name in self.files if name.startswith(base)})


class _Handler(BaseHTTPRequestHandler):
    node: FakeWebHdfs

    def do_GET(self) -> None:
        split = urlsplit(self.path)
        query = {key.lower(): values[0] for key, values in parse_qs(split.query).items()}
        # The client escapes some characters and sends others as plain UTF-8.
        path = unquote_to_bytes(split.path.removeprefix("/webhdfs/v1").encode("latin-1")).decode() or "/"
        operation = query["op"].upper()
        self.node.calls[operation, path] += 1
        where = "/webhdfs/v1" + quote(path)
        status = self.node.status(path)
        if status is None:
            self._fail(404, "java.io.FileNotFoundException", f"File does not exist: {path}")
        elif operation == "GETFILESTATUS":
            self._json({"FileStatus": status})
        elif path in self.node.broken:
            self._fail(403, "org.apache.hadoop.security.AccessControlException", f"Permission denied: {path}")
        elif operation == "LISTSTATUS":
            base = path.rstrip("/")
            found = [{**(self.node.status(f"{base}/{n}") or {}), "pathSuffix": n} for n in self.node.children(path)]
            self._json({"FileStatuses": {"FileStatus": found or [status]}})
        elif path in self.node.denied:
            self._fail(403, "org.apache.hadoop.security.AccessControlException", f"Permission denied: {path}")
        elif operation == "CHECKACCESS":
            self._send(200, b"")
        elif operation != "OPEN":
            self._fail(400, "java.lang.UnsupportedOperationException", operation)
        elif path in self.node.gone or status["type"] == "DIRECTORY":
            self._fail(404, "java.io.FileNotFoundException", f"Path is not a file: {path}")
        elif "datanode" not in query:
            self._send(307, b"", Location=f"http://{self.node.address}{where}?{split.query}&datanode=1")
        else:
            self._content(path, int(query.get("offset", 0)), self.node.failing.pop(path, None))

    def _content(self, path: str, offset: int, failure: str | None) -> None:
        content = self.node.files[path][offset:]
        if failure == "503":
            self._fail(503, "java.io.IOException", "the server is busy")
        elif failure == "half":
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
        elif failure is None:
            self._send(200, content)

    def _json(self, answer: object) -> None:
        self._send(200, json.dumps(answer).encode())

    def _fail(self, code: int, java_class: str, message: str) -> None:
        error = {"exception": java_class.rsplit(".", 1)[-1], "javaClassName": java_class, "message": message}
        self._send(code, json.dumps({"RemoteException": error}).encode())

    def _send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""
