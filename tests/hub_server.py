"""A small Hugging Face hub on loopback: enough of its protocol for the real client."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"

_API = re.compile(r"/api/models/(?P<name>[^/]+/[^/]+)/(?P<what>revision|tree)/(?P<revision>[^/]+)")
_FILE = re.compile(r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class Hub:
    """Repositories: from names to files, each with the one commit and the revisions `main` and `v1`."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.gated: set[str] = set()
        self.cut: set[str] = set()
        """Paths whose next download breaks off half-way."""
        self.served: list[tuple[str, str]] = []
        """Path and range of every file that was sent, in their order."""
        self.address = ""  # "" when nobody answers

    @contextmanager
    def running(self) -> Iterator[Hub]:
        """Answers on a free port."""
        hub = self

        class Handler(_Handler):
            state = hub

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.address = ""
            server.shutdown()
            server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: Hub

    def do_GET(self) -> None:
        self._answer(send=True)

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, send: bool) -> None:
        if not self.state.address:  # connections outlive the server
            self.close_connection = True
            return
        path = urllib.parse.unquote(self.path.partition("?")[0])
        asked = _API.fullmatch(path) or _FILE.fullmatch(path)
        name = asked["name"] if asked else ""
        files = self.state.repositories.get(name)
        if asked is None or files is None:
            self._send(send, 404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
        elif name in self.state.gated:
            self._send(send, 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        elif asked["revision"] not in ("main", "v1", COMMIT):
            self._send(send, 404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "none"})
        elif asked.re is _FILE:
            self._send_file(send, asked["path"], files)
        else:
            self._send(send, 200, json.dumps(_describe(asked["what"], name, files)).encode(), {})

    def _send_file(self, send: bool, path: str, files: dict[str, bytes]) -> None:
        if path not in files:
            self._send(send, 404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no such file"})
            return
        content, begin = files[path], 0
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range", "")
        if (found := re.match(r"bytes=(\d+)-", asked)) and int(found[1]):
            begin = int(found[1])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        if send:
            self.state.served.append((path, asked))
        self._send(send, 206 if begin else 200, content[begin:], headers, cut=send and path in self.state.cut)
        self.state.cut -= {path} if send else set()

    def _send(
        self, send: bool, status: int, content: bytes, headers: dict[str, str], cut: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if send:
            self.wfile.write(content[: len(content) // 2] if cut else content)
        self.close_connection = cut


def _describe(what: str, name: str, files: dict[str, bytes]) -> Any:
    if what == "revision":
        return {"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
    return [
        {"type": "file", "path": path, "size": len(content), "oid": _etag(content)}
        for path, content in files.items()
    ]


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
