"""A small, strict Hub server on loopback, for the unpatched huggingface_hub client.

It implements what sharing an adapter needs: repos, commits with large files, branches, pull requests, private and gated
repos, downloads by revision. The token "hf_<user>" belongs to <user>. Everything is kept in memory.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pkl")


class Refusal(Exception):
    """An error response: HTTP status, the Hub's error code, and a message."""

    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


@dataclass
class Repo:
    """Commits (sha -> path -> content), and refs (branch or pull request -> sha)."""

    name: str
    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, ref: str, tree: dict[str, bytes]) -> str:
        """The sha of a new commit, to which `ref` then points."""
        sha = hashlib.sha1(f"{self.name} {ref} {len(self.commits)}".encode()).hexdigest()
        self.commits[sha] = tree
        self.refs[ref] = sha
        return sha

    def resolve(self, revision: str) -> str:
        """The sha that a branch, pull request or sha stands for."""
        sha = self.refs.get(revision, revision)
        if sha not in self.commits:
            raise Refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha


@dataclass
class Fault:
    """A fault to inject: the next `times` requests that match `pattern` get this status, headers, or a changed body."""

    pattern: str
    times: int
    status: int = 200
    change: Callable[[bytes], bytes] = bytes
    headers: dict[str, str] = field(default_factory=dict)


class LoopbackHub:
    """The server, listening at `url`."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        hub = self

        class Handler(RequestHandler):
            server_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def clear(self) -> None:
        """Remove all repos, files, faults and recorded requests."""
        for kept in (self.repos, self.large, self.faults, self.requests):
            kept.clear()

    def head(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The files (path -> content) at a revision."""
        found = self.repos[repo]
        return found.commits[found.resolve(revision)]

    def put(self, repo: str, files: dict[str, bytes], **kind: bool) -> str:
        """The sha of a new commit of these files, on a repo that is made if it does not exist."""
        found = self.repos.setdefault(repo, Repo(repo, **kind))
        before = found.commits.get(found.refs.get("main", ""), {})
        self.large |= {hashlib.sha256(data).hexdigest(): data for data in files.values()}
        return found.commit("main", {**before, **files})


class RequestHandler(BaseHTTPRequestHandler):
    """Handles one request by the method that ROUTES names for it."""

    protocol_version = "HTTP/1.1"
    server_hub: LoopbackHub

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def answer(self) -> None:
        """Read the request and send the response of its route, or an injected fault."""
        hub, parts = self.server_hub, urlsplit(self.path)
        self.body = self._body()
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        user = re.match(r"Bearer hf_(\w+)", self.headers.get("Authorization", ""))
        self.user = user[1] if user else None
        line = f"{self.command} {unquote(parts.path)}"
        hub.requests.append(line)
        fault = next((f for f in hub.faults if f.times > 0 and re.search(f.pattern, line)), None)
        try:
            if fault is not None:
                fault.times -= 1
                if fault.status >= 400:
                    raise Refusal(fault.status, None, "a fault")
            for pattern, route in ROUTES:
                match = re.fullmatch(pattern, line)
                if match:
                    status, headers, content = route(self, **match.groupdict())
                    headers = headers | (fault.headers if fault else {})
                    self.reply(status, headers, fault.change(content) if fault and content else content)
                    return
            raise Refusal(404, None, f"no route {line}")
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message} | ({"X-Error-Code": refusal.code} if refusal.code else {})
            headers |= fault.headers if fault else {}
            self.reply(refusal.status, headers, json.dumps({"error": refusal.message}).encode())

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        """Send a response; a HEAD request gets only the headers."""
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    # --- access ---------------------------------------------------------------------------------------------------

    def repo(self, name: str, *, write: bool = False, content: bool = False) -> Repo:
        """The repo if the user may access it; otherwise the error of the real Hub, which hides private repos."""
        found, owner = self.server_hub.repos.get(name), self.user == name.split("/")[0]
        if found is None or (found.private and not owner):
            raise Refusal(404 if self.user else 401, "RepoNotFound", "Repository not found")
        if content and found.gated and not owner:
            raise Refusal(403 if self.user else 401, "GatedRepo", f"Access to model {name} is restricted.")
        if write and not owner and self.query.get("create_pr") != "1":
            raise Refusal(403 if self.user else 401, None, "no write access")
        return found

    # --- routes ---------------------------------------------------------------------------------------------------

    def create(self) -> "Answer":
        asked = json.loads(self.body)
        if self.user is None:
            raise Refusal(401, None, "Invalid username or password.")
        name = f"{asked.get('organization') or self.user}/{asked['name']}"
        url = {"url": f"{self.server_hub.url}/{name}"}
        if name in self.server_hub.repos:
            return 409, {}, json.dumps(url | {"error": "You already created this model repo"}).encode()
        private = asked.get("private") or asked.get("visibility") == "private"
        repo = self.server_hub.repos[name] = Repo(name, private=bool(private))
        repo.commit("main", {".gitattributes": b"*.safetensors filter=lfs"})
        return ok(url)

    def branch(self, name: str, branch: str) -> "Answer":
        repo = self.repo(name, write=True)
        if branch in repo.refs:
            raise Refusal(409, None, "Reference already exists")
        repo.refs[branch] = repo.refs["main"]
        return ok({})

    def info(self, name: str, revision: str | None) -> "Answer":
        repo = self.repo(name)
        sha = repo.resolve(revision or "main")
        siblings = [{"rfilename": path} for path in sorted(repo.commits[sha])]
        return ok({"id": name, "sha": sha, "private": repo.private, "siblings": siblings, "tags": []})

    def tree(self, name: str, revision: str) -> "Answer":
        repo = self.repo(name)
        files = repo.commits[repo.resolve(revision)].items()
        return ok([{"type": "file", "path": p, "size": len(d), "oid": etag(p, d)} for p, d in sorted(files)])

    def preupload(self, name: str, revision: str) -> "Answer":
        repo = self.repo(name, write=True)
        tree = repo.commits[repo.resolve(revision)]
        rows = []
        for file in json.loads(self.body)["files"]:
            path, mode = file["path"], "lfs" if file["path"].endswith(LARGE) else "regular"
            row = {"path": path, "uploadMode": mode, "shouldIgnore": False}
            rows.append(row | ({"oid": etag(path, tree[path])} if path in tree else {}))
        return ok({"files": rows})

    def large_batch(self, name: str) -> "Answer":
        self.repo(name)
        objects = json.loads(self.body)["objects"]
        for thing in objects:
            if thing["oid"] not in self.server_hub.large:
                thing["actions"] = {"upload": {"href": f"{self.server_hub.url}/large/{thing['oid']}", "header": {}}}
        return ok({"transfer": "basic", "objects": objects})

    def large_put(self, oid: str) -> "Answer":
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise Refusal(400, None, "sha mismatch")
        self.server_hub.large[oid] = self.body
        return ok({})

    def commit(self, name: str, revision: str) -> "Answer":
        repo = self.repo(name, write=True)
        tree = dict(repo.commits[repo.resolve(revision)])
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                tree[value["path"]] = self.server_hub.large[value["oid"]]
        request = self.query.get("create_pr") == "1"
        ref = f"refs/pr/{sum(r.startswith('refs/pr') for r in repo.refs) + 1}" if request else revision
        sha = repo.commit(ref, tree)
        made = {"success": True, "commitOid": sha, "commitUrl": f"{self.server_hub.url}/{name}/commit/{sha}"}
        number = ref.split("/")[-1]
        return ok(made | ({"pullRequestUrl": f"{self.server_hub.url}/{name}/discussions/{number}"} if request else {}))

    def resolve(self, name: str, revision: str, path: str) -> "Answer":
        repo = self.repo(name, content=True)
        sha = repo.resolve(revision)
        commit = {"X-Repo-Commit": sha}
        if path not in repo.commits[sha]:
            return 404, {**commit, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b"{}"
        data = repo.commits[sha][path]
        return 200, {**commit, "ETag": f'"{etag(path, data)}"', "Accept-Ranges": "bytes"}, data

    def valid(self) -> "Answer":
        return ok({"errors": [], "warnings": []})


Answer = tuple[int, dict[str, str], bytes]


def ok(data: Any) -> Answer:
    """A JSON response."""
    return 200, {"Content-Type": "application/json"}, json.dumps(data).encode()


def etag(path: str, data: bytes) -> str:
    """The ETag of the real Hub: sha256 for large files, git's blob hash for the others."""
    if path.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


_REPO = r"(?P<name>[^/]+/[^/]+)"
_API = rf"/api/models/{_REPO}"
ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"POST /api/repos/create", RequestHandler.create),
    (r"POST /api/validate-yaml", RequestHandler.valid),
    (rf"POST {_API}/branch/(?P<branch>.+)", RequestHandler.branch),
    (rf"POST {_API}/preupload/(?P<revision>.+)", RequestHandler.preupload),
    (rf"POST {_API}/commit/(?P<revision>.+)", RequestHandler.commit),
    (rf"POST /{_REPO}\.git/info/lfs/objects/batch", RequestHandler.large_batch),
    (r"PUT /large/(?P<oid>\w+)", RequestHandler.large_put),
    (rf"(?:GET|HEAD) /{_REPO}/resolve/(?P<revision>refs/pr/\d+|[^/]+)/(?P<path>.+)", RequestHandler.resolve),
    (rf"GET {_API}/tree/(?P<revision>.+)", RequestHandler.tree),
    (rf"GET {_API}(?:/revision/(?P<revision>.+))?", RequestHandler.info),
]
