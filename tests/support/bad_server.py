"""A local HTTP server that misbehaves, one fault per path: for tests of `regolith pull`.

Serves a listing as a model hub does and files under /USER/REPO/resolve/main/. What goes wrong is
the repository's name: plain, norange (answers 200 to a range), cut (breaks off in the middle of
each response), redirect, busy (429 with Retry-After, then 503, then works), short (says a smaller
length than listed), long (sends more than listed), hash (other bytes than the listing's hash),
grow (the file is another, larger one after the first try), never (503 for ever), part (no second
part), evil (names that leave the folder), held (sends no more than `Hub.limit` bytes of a file and
then waits for the client to go; all of it where that is None).
"""
import hashlib
import http.server
import json
import threading
import time


class Hub:
    def __init__(self, content, parts=None):
        self.content, self.parts = content, parts or {}
        self.requests = []  # (repository, path, range header)
        self.counts = {}
        self.limit = None
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                hub.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def files(self, repo):
        if repo == "part":
            return {"m-00001-of-00002.gguf": self.content}
        if repo == "split":
            half = len(self.content) // 2
            return {"m-00001-of-00002.gguf": self.content[:half],
                    "m-00002-of-00002.gguf": self.content[half:]}
        if repo == "many":
            return {"m-Q4_K.gguf": self.content, "m-Q8_0.gguf": self.content[::-1],
                    "mmproj-f16.gguf": b"x"}
        return {"m-Q4_K.gguf": self.content, "README.md": b"hello"}

    def send(self, h, status, body, headers=(), length=None, keep=None):
        h.send_response(status)
        for name, value in headers:
            h.send_header(name, value)
        h.send_header("Content-Length", str(len(body) if length is None else length))
        h.end_headers()
        try:
            h.wfile.write(body if keep is None else body[:keep])
            h.wfile.flush()
        except OSError:
            pass
        if keep is not None or length not in (None, len(body)):
            h.close_connection = True
            h.connection.shutdown(2)

    def send_held(self, h, body, begin):
        h.send_response(206 if begin else 200)
        h.send_header("Content-Length", str(len(body) - begin))
        if begin:
            h.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        h.end_headers()
        try:
            h.wfile.write(body[begin:self.limit])
            h.wfile.flush()
            if self.limit is not None:
                h.connection.recv(1)
        except OSError:  # the client was killed
            pass
        h.close_connection = True

    def listing(self, h, repo):
        rows = [{"type": "file", "path": p, "size": 150,
                 "lfs": {"oid": hashlib.sha256(b).hexdigest(), "size": len(b)}}
                for p, b in self.files(repo).items()]
        if repo == "evil":
            rows = [{"type": "file", "path": "../../m.gguf", "size": 3}]
        self.send(h, 200, json.dumps(rows).encode())

    def answer(self, h):
        words = h.path.split("?")[0].strip("/").split("/")
        if words[:2] == ["api", "models"]:
            return self.listing(h, words[3])
        if words[0] == "moved":
            words = words[1:]
        repo, name = words[1], "/".join(words[4:])
        asked = h.headers.get("Range")
        self.requests.append((repo, h.path, asked, h.headers.get("Authorization")))
        n = self.counts[repo] = self.counts.get(repo, 0) + 1
        body = self.files(repo).get(name)
        if body is None:
            return self.send(h, 404, b"no")
        if repo == "redirect" and not h.path.startswith("/moved"):
            return self.send(h, 302, b"", [("Location", self.url + "/moved" + h.path)])
        if repo == "never" or (repo == "busy" and n < 3):
            return self.send(h, 429 if n == 1 else 503, b"later",
                             [("Retry-After", "0")] if n == 1 else [])
        if repo == "hash":
            body = body[:-1] + bytes([body[-1] ^ 1])
        if repo == "long":
            body += b"more"
        if repo == "short":
            body = body[:-5]
        if repo == "grow" and n > 1:
            body = body + body[:1000]
        begin = int(asked[6:].split("-")[0]) if asked and repo != "norange" else None
        keep = None
        if repo in ("cut", "norange", "grow"):
            rest = len(body) - (begin or 0)
            keep = None if (repo != "cut" and n > 1) else max(1, rest // 2) if rest > 64 else None
        if repo == "held":
            return self.send_held(h, body, begin or 0)
        if begin is None:
            return self.send(h, 200, body, [("ETag", '"%d"' % len(body))], keep=keep)
        if begin >= len(body):
            return self.send(h, 416, b"", [("Content-Range", f"bytes */{len(body)}")])
        self.send(h, 206, body[begin:],
                  [("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}"),
                   ("ETag", '"%d"' % len(body))], keep=keep)
