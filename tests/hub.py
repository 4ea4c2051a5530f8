"""A Hugging Face hub on this machine, as far as uploading and downloading a model goes."""

import base64
import contextlib
import hashlib
import http.server
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMIT = "0" * 40


@contextlib.contextmanager
def serving(patch: pytest.MonkeyPatch, folder: Path) -> Iterator[dict[str, dict[str, bytes]]]:
    """The files of its models, by name, while the libraries take this machine for the hub."""
    models: dict[str, dict[str, bytes]] = defaultdict(dict)

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, content: bytes, **headers: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
            files = models.get(name)
            if files is None:
                self.send_error(404)
            elif parts[0] == "api":
                siblings = [
                    {
                        "rfilename": each,
                        "type": "file",
                        "path": each,
                        "size": len(files[each]),
                        "oid": COMMIT,
                    }
                    for each in files
                ]
                about = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
                content = siblings if "tree" in parts else about
                self.answer(json.dumps(content).encode())
            elif (content := files.get("/".join(parts[4:]))) is not None:
                etag = hashlib.sha1(content).hexdigest()
                self.answer(content, ETag=f'"{etag}"', X_Repo_Commit=COMMIT)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            address = f"http://{self.headers['Host']}"
            parts = self.path.partition("?")[0].strip("/").split("/")
            if parts[1] == "repos":
                asked = json.loads(body)
                name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
                models[name].clear()
                self.answer(json.dumps({"url": f"{address}/{name}"}).encode())
            elif parts[1] == "validate-yaml":
                self.answer(json.dumps({"warnings": [], "errors": []}).encode())
            elif parts[4] == "preupload":
                found = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                    for f in json.loads(body)["files"]
                ]
                self.answer(json.dumps({"files": found}).encode())
            else:
                files = models["/".join(parts[2:4])]
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                url = f"{address}/{'/'.join(parts[2:4])}/commit/{COMMIT}"
                self.answer(json.dumps({"commitUrl": url, "commitOid": COMMIT}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    patch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "cache"))
    patch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    try:
        yield models
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
