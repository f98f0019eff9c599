"""The part of the hub's HTTP interface that huggingface_hub and datasets call to download.

Metadata comes from /api, files from /resolve; large files are redirected to another path (on the
real hub: another host) that answers range requests. Headers and error codes are the hub's.
"""

import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

# Kept in large file storage by the hub, whatever their size.
LARGE = (".bin", ".gz", ".h5", ".model", ".onnx", ".parquet", ".safetensors")
TOKEN = "hf_made_up_for_the_rehearsal"


@dataclass
class Repository:
    """Files of one repository at one commit, which is also its `main`."""

    kind: str
    id: str
    commit: str
    files: dict[str, bytes]
    gated: bool = False

    def entry(self, name: str) -> dict:
        content = self.files[name]
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        entry = {"type": "file", "path": name, "size": len(content), "oid": oid}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 130}
        return entry


@dataclass
class Request:
    """What a client asked for, and how many bytes of content it got."""

    method: str
    path: str
    range: str | None
    status: int = 0
    sent: int = 0

    @property
    def of_a_file(self) -> bool:
        return self.path.startswith("/cdn/") or "/resolve/" in self.path


@dataclass
class Hub:
    """A running server; `with Hub(repositories) as hub:` stops it again."""

    repositories: list[Repository]
    requests: list[Request] = field(default_factory=list)
    #: name of a file -> bytes after which the connection breaks, once
    breaks: dict[str, int] = field(default_factory=dict)
    #: whether such a break is the end: no request is answered any more until `dead` is unset
    mortal: bool = False
    dead: bool = False

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def repository(self, kind: str, name: str) -> Repository:
        return next(r for r in self.repositories if (r.kind, r.id) == (kind, name))

    def fetched(self) -> list[str]:
        """Names of files whose content was sent, in order."""
        return [r.path.rpartition("/")[2] for r in self.requests if r.sent and r.of_a_file]


def _folder(path: str) -> dict:
    return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: Hub

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _answer(self, body: bytes = b"") -> None:
        if self.server_hub.dead:
            self._hang_up()
            return
        path = unquote(urlsplit(self.path).path)
        self._request = Request(self.command, path, self.headers.get("Range"))
        self.server_hub.requests.append(self._request)
        api = re.fullmatch(
            r"/api/(model|dataset)s/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(/.*)?)?",
            path,
        )
        resolve = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        cdn = re.fullmatch(r"/cdn/(model|dataset)/([^/]+/[^/]+)/([^/]+)/(.+)", path)
        if api:
            kind, name, what, revision, folder = api.groups()
            if repository := self._repository(kind, name, revision or "main"):
                self._api(repository, what, (folder or "").strip("/"), body)
        elif resolve:
            dataset, name, revision, file = resolve.groups()
            kind = "dataset" if dataset else "model"
            if repository := self._repository(kind, name, revision):
                self._resolve(repository, file)
        elif cdn:
            kind, name, _, file = cdn.groups()
            content = self.server_hub.repository(kind, name).files[file]
            self._content(content, file, {"Accept-Ranges": "bytes"})
        else:
            self._error(404, "EntryNotFound", "no such page")

    def _repository(self, kind: str, name: str, revision: str) -> Repository | None:
        found = [r for r in self.server_hub.repositories if (r.kind, r.id) == (kind, name)]
        if not found:
            self._error(401, "RepoNotFound", "Repository not found")
        elif found[0].gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._error(401, "GatedRepo", f"Access to {kind} {name} is restricted.")
        else:
            at = [r for r in found if revision in ("main", r.commit)]
            if at:
                return at[0]
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return None

    def _api(self, repository: Repository, what: str | None, folder: str, body: bytes) -> None:
        if what == "tree":
            below = f"{folder}/" if folder else ""
            names = [name for name in sorted(repository.files) if name.startswith(below)]
            folders = sorted({name.rpartition("/")[0] for name in names} - {"", folder})
            if "recursive=true" not in self.path.lower():
                names = [name for name in names if "/" not in name.removeprefix(below)]
            if folder and not names:
                self._error(404, "EntryNotFound", f"{folder} does not exist")
            else:
                self._json([_folder(p) for p in folders] + [repository.entry(n) for n in names])
        elif what == "paths-info":
            wanted = json.loads(body)["paths"]
            folders = {name.rpartition("/")[0] for name in repository.files} & set(wanted)
            found = [repository.entry(name) for name in wanted if name in repository.files]
            self._json(found + [_folder(path) for path in sorted(folders)])
        else:
            self._json(
                {
                    "id": repository.id,
                    "sha": repository.commit,
                    "private": False,
                    "gated": "auto" if repository.gated else False,
                    "tags": [],
                    "siblings": [{"rfilename": name} for name in sorted(repository.files)],
                }
            )

    def _resolve(self, repository: Repository, file: str) -> None:
        if file not in repository.files:
            self._error(404, "EntryNotFound", f"{file} does not exist")
            return
        entry = repository.entry(file)
        headers = {"X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if "lfs" not in entry:
            headers["ETag"] = f'"{entry["oid"]}"'
            self._content(repository.files[file], file, headers)
            return
        headers["X-Linked-Size"] = str(entry["size"])
        headers["X-Linked-Etag"] = f'"{entry["lfs"]["oid"]}"'
        where = f"/cdn/{repository.kind}/{repository.id}/{repository.commit}/{file}"
        # Another host, as far as the client can see: the real hub's files lie elsewhere too.
        headers["Location"] = self.server_hub.endpoint.replace("127.0.0.1", "localhost") + where
        self._send(HTTPStatus.FOUND, headers, b"")

    def _content(self, content: bytes, name: str, headers: dict[str, str]) -> None:
        status, part = HTTPStatus.OK, content
        if bounds := re.fullmatch(r"bytes=(\d+)-(\d*)", self._request.range or ""):
            first, last = int(bounds[1]), int(bounds[2] or len(content) - 1)
            if first >= len(content):
                headers["Content-Range"] = f"bytes */{len(content)}"
                self._send(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers, b"")
                return
            status, part = HTTPStatus.PARTIAL_CONTENT, content[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        self._send(status, headers, part, name)

    def _json(self, value: object) -> None:
        headers = {"Content-Type": "application/json"}
        self._send(HTTPStatus.OK, headers, json.dumps(value).encode())

    def _error(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send(status, headers, json.dumps({"error": message}).encode())

    def _send(self, status: int, headers: dict[str, str], body: bytes, name: str = "") -> None:
        self._request.status = int(status)
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.server_hub.breaks.pop(name, None) if name else None
        part = body if limit is None else body[:limit]
        self.wfile.write(part)
        self._request.sent = len(part)
        if limit is not None:
            self.server_hub.dead = self.server_hub.mortal
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)
