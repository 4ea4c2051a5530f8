"""A web server on this machine that can be interrupted, refuse to continue, or lie."""

import contextlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Behaviour:
    """What the server does.

    Attributes:
        files: Content by path.
        cut_after: Bytes after which each connection is cut; None to send all.
        ranges: Whether it continues where asked.
        failures: How many requests it answers with `failure_code` first.
        failure_code: What it answers then.
        announce: Whether it says how long the answer is.
        requests: The Range headers that came.
    """

    files: dict[str, bytes]
    cut_after: int | None = None
    ranges: bool = True
    failures: int = 0
    failure_code: int = 503
    announce: bool = True
    requests: list[str | None] = field(default_factory=list)


@contextlib.contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server that behaves so, while the block runs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            behaviour.requests.append(asked)
            if behaviour.failures > 0:
                behaviour.failures -= 1
                self.send_error(behaviour.failure_code)
                return
            content = behaviour.files.get(self.path.partition("?")[0])
            if content is None:
                self.send_error(404)
                return
            start = 0
            if asked and behaviour.ranges:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.end_headers()
                    return
                self.send_response(206)
                span = f"bytes {start}-{len(content) - 1}/{len(content)}"
                self.send_header("Content-Range", span)
            else:
                self.send_response(200)
            if behaviour.announce:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: behaviour.cut_after])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
