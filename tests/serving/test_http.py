"""A real server process, asked over the network of this machine."""

import base64
import contextlib
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import families
import pytest
import transformers
from PIL import Image
from serving.models import picture, text_folder

from kepsvgp import Abstainer, convert, save_pretrained
from kepsvgp.serving import predict_file

TOKEN = "a token for tests"
SECONDS = 5
MAX_BODY = 200_000
TEXTS = ["good film", "the bad bad film", "unheard of", "a film", "good " * 30, "bad", "the the"]


class Server(NamedTuple):
    process: subprocess.Popen
    port: int
    expected: list[dict[str, Any]]
    """What `kepsvgp predict` answers to the rows of the tests."""

    def ask(
        self, body: Any, path: str = "/predict", method: str = "POST", **headers: str
    ) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            sent = {"Content-Type": "application/json"} | named
            connection.request(method, path, content, sent)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@contextlib.contextmanager
def serving(
    folder: Path, expected: list[dict[str, Any]], *options: object, **environment: str
) -> Iterator[Server]:
    command = [sys.executable, "-m", "kepsvgp", "serve", folder, "--port", 0, *options]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None
            yield Server(process, int(found[1]), expected)
        finally:
            process.kill()


def predicted(folder: Path, source: Path) -> list[dict[str, Any]]:
    predict_file(folder, source, source.parent / "out.jsonl")
    lines = (source.parent / "out.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A folder with a rule that answers some of the texts, and what is answered."""
    path = tmp_path_factory.mktemp("texts")
    folder = text_folder(path / "model")
    (path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    middle = sorted(each["probability"] for each in predicted(folder, path / "in.jsonl"))[3]
    Abstainer(middle - 1e-3, 0.3, 0.9, coverage=0.5, risk=0.1, size=50).save(folder)
    return folder, predicted(folder, path / "in.jsonl")


@pytest.fixture(scope="module")
def texts(text_model) -> Iterator[Server]:
    options = ("--timeout", SECONDS, "--max-rows", 20, "--max-body", MAX_BODY / 1e6)
    with serving(*text_model, *options) as server:
        yield server


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("images")
    model, _ = families.make("vit")
    convert(model, rank=3, posterior_scale=1.0)
    processor = transformers.ViTImageProcessorPil(size={"height": 10, "width": 10})
    save_pretrained(model, path / "model", processor=processor)
    for number in range(3):
        picture(path / "in" / f"{number}.png", (20, 10 + number), number)
    expected = predicted(path / "model", path / "in")
    for each in expected:
        each["base64"] = base64.b64encode((path / "in" / each["row"]).read_bytes()).decode()
    with serving(path / "model", expected, KEPSVGP_TOKEN=TOKEN) as server:
        yield server


def check(server: Server, answers: list[dict[str, Any]], places: list[int]) -> None:
    """Answers are those of `predict`, to a float's rounding in another batch."""
    assert [answer["row"] for answer in answers] == [str(n + 1) for n in range(len(places))]
    for answer, place in zip(answers, places, strict=True):
        for name, value in server.expected[place].items():
            if name not in ("row", "base64"):
                wanted = pytest.approx(value, abs=1e-5) if isinstance(value, float) else value
                assert answer[name] == wanted


@contextlib.contextmanager
def others_are_answered(server: Server, body: Any = None, **headers: str) -> Iterator[None]:
    """Others' requests of the first three rows, all the while."""
    end, outcomes = threading.Event(), []
    body = body or {"texts": TEXTS[:3]}

    def ask() -> None:
        while not end.is_set() or not outcomes:
            outcomes.append(server.ask(body, **headers))

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            yield
        finally:
            end.set()
        for each in asking:
            each.result()
    assert {status for status, _ in outcomes} == {200}
    for _, found in outcomes:
        check(server, found["answers"], [0, 1, 2])


def test_concurrent_clients_get_what_predict_gives(texts: Server) -> None:
    def ask(number: int) -> None:
        places = [(number + step) % len(TEXTS) for step in range(1 + number % 9)]
        status, found = texts.ask({"texts": [TEXTS[place] for place in places]})
        assert status == 200
        check(texts, found["answers"], places)

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(ask, range(256)))

    assert {each["abstain"] for each in texts.expected} == {True, False}


def framed(field: str, rows: object) -> bytes:
    return json.dumps({field: rows}).encode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"", {}, 422, "must be JSON"),
        (b'{"texts": ["good"', {}, 422, "must be JSON"),
        (b"\xff\xfe\x00", {}, 422, "must be JSON"),
        (b"[" * 100_000, {}, 422, "must be JSON"),
        (b'{"texts":' * 9_000 + b"1" + b"}" * 9_000, {}, 422, "must be JSON"),
        (b'{"texts": [' + b"9" * 100_000 + b"]}", {}, 422, "must be JSON"),
        (b'["good"]', {}, 422, "an object"),
        (framed("text", ["good"]), {}, 422, '{"texts": […]}'),
        (framed("texts", []), {}, 422, "at least one row"),
        (framed("texts", "good"), {}, 422, "an object"),
        (b'{"texts": ["good"], "seed": 1}', {}, 422, "nothing else"),
        (framed("texts", ["good", "  "]), {}, 422, "texts[1]: it has no text"),
        (framed("texts", ["good", {"a": 1}]), {}, 422, "texts[1]"),
        (framed("texts", ["\ud800"]), {}, 422, "not UTF-8"),
        (framed("texts", ["good"] * 21), {}, 413, "at most 20 rows"),
        (framed("texts", ["g" * 4 * MAX_BODY]), {}, 413, f"at most {MAX_BODY} bytes"),
        (b"[" * (100 * MAX_BODY), {}, 413, "bytes"),
        (framed("texts", ["good"]), {"Content_Type": "text/plain"}, 415, "application/json"),
        (framed("texts", ["good"]), {"Content_Type": "multipart/form-data"}, 415, "json"),
        (zlib.compress(framed("texts", ["a"])), {"Content_Encoding": "deflate"}, 415, "compressed"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_request_is_refused_and_harms_nobody(
    body, headers, status, says, texts: Server
) -> None:
    with others_are_answered(texts):
        found, content = texts.ask(body, **headers)

    assert found == status
    assert says in content["error"]


@pytest.mark.parametrize(
    ("path", "method", "status"), [("/nothing", "GET", 404), ("/predict", "GET", 405)]
)
def test_wrong_address_is_told_in_json(path, method, status, texts: Server) -> None:
    assert texts.ask(b"", path, method)[0] == status


def test_slow_clients_are_sent_away_and_harm_nobody(texts: Server) -> None:
    start = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    beginnings = [b"", b"POST /pre", start, start + b"Content-Length: 99\r\n\r\n{"]
    beginnings.append(start + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{")
    with others_are_answered(texts), contextlib.ExitStack() as stack:
        slow = [stack.enter_context(texts.connect()) for _ in range(40)]
        for number, each in enumerate(slow):
            each.sendall(beginnings[number % len(beginnings)])
        for number, each in enumerate(slow):
            received = b""
            with contextlib.suppress(ConnectionError):
                while part := each.recv(4096):
                    received += part
            # who has said what is wanted is told
            late = number % len(beginnings) > 2
            assert received.startswith(b"HTTP/1.1 408") == late
            assert bool(received) == late


def test_headers_without_end_are_refused(texts: Server) -> None:
    with others_are_answered(texts), texts.connect() as endless:
        endless.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                endless.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
            assert endless.recv(100).startswith(b"HTTP/1.1 400")


def test_numbers_and_description_are_served(texts: Server) -> None:
    texts.ask({"texts": TEXTS})
    connection = http.client.HTTPConnection("127.0.0.1", texts.port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    values = {line.split()[0]: float(line.split()[1]) for line in lines if line[0] != "#"}
    assert values["kepsvgp_rows_total"] >= values["kepsvgp_withheld_total"] >= 1
    assert values["kepsvgp_batches_total"] >= 1
    assert values['kepsvgp_requests_total{status="200"}'] >= 1
    assert (values["kepsvgp_queue_rows"], values["kepsvgp_body_bytes"]) == (0, 0)

    assert texts.ask(b"", "/health", "GET") == (200, {"status": "ok"})
    _, document = texts.ask(b"", "/openapi.json", "GET")
    told = document["paths"]["/predict"]["post"]["responses"]["200"]["content"]
    answer = told["application/json"]["schema"]["properties"]["answers"]["items"]
    assert set(answer["properties"]) == set(texts.expected[0])
    connection.request("GET", "/docs")
    assert b"openapi.json" in connection.getresponse().read()
    connection.close()


def png(width: int, height: int) -> str:
    """An image of one black bit a pixel, small as a file."""
    data = io.BytesIO()
    Image.new("1", (width, height)).save(data, "PNG")
    return base64.b64encode(data.getvalue()).decode()


def bomb(side: int) -> str:
    """An image whose header alone is there."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def test_images_are_answered_as_predict_does(images: Server) -> None:
    rows = [each["base64"] for each in images.expected]
    bearer = {"Authorization": f"Bearer {TOKEN}"}

    status, found = images.ask({"images": [*rows, f"data:image/png;base64,{rows[0]}"]}, **bearer)

    assert status == 200
    check(images, found["answers"], [0, 1, 2, 0])
    hostile = {
        "images[1] must be an image of at most": ([rows[0], bomb(30_000)], 422),
        "images[0] must be an image (PNG": ([bomb(1000)], 422),
        "all images together": ([png(6000, 6000)] * 2, 413),
        "images[0] must be base64": (["%%%"], 422),
        "images[0] must be an image": ([base64.b64encode(b"<svg/>").decode()], 422),
        "images[0]: it has no image": ([None], 422),
    }
    with others_are_answered(images, {"images": rows}, **bearer):
        for says, (content, expected) in hostile.items():
            status, found = images.ask({"images": content}, **bearer)
            assert (status, says) == (expected, found["error"][: len(says)])
            assert "object at" not in found["error"]


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer a token for test", f"Basic {TOKEN}", "é"])
def test_nobody_enters_without_the_token(shown: str, images: Server) -> None:
    rows = {"images": [images.expected[0]["base64"]]}
    for path, method in (("/predict", "POST"), ("/metrics", "GET"), ("/docs", "GET")):
        assert images.ask(rows, path, method, Authorization=shown)[0] == 401
    assert images.ask(b"", "/health", "GET", Authorization=shown)[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_answers_what_is_under_way(number: signal.Signals, text_model) -> None:
    body = framed("texts", TEXTS)
    with serving(*text_model) as server, server.connect() as begun, server.connect():
        head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n"
        begun.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body[:9])
        assert server.ask({"texts": ["good"]})[0] == 200

        server.process.send_signal(number)
        with contextlib.suppress(ConnectionError):
            while server.ask({"texts": ["good"]})[0] == 200:
                pass
        begun.sendall(body[9:])
        response = http.client.HTTPResponse(begun)
        response.begin()

        check(server, json.loads(response.read())["answers"], list(range(len(TEXTS))))
        assert server.process.wait(timeout=60) == 0
