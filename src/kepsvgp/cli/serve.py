"""`kepsvgp serve`: a saved model behind HTTP."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kepsvgp.cli.command import MOST, MaxFalseAlarm, MaxRisk, Samples, Seed
from kepsvgp.errors import UserError

TOKEN = "KEPSVGP_TOKEN"


def serve(
    model: Annotated[Path, typer.Argument(help="A run folder, or one that save_pretrained wrote.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    samples: Samples = 10,
    max_risk: MaxRisk = None,
    confidence: Annotated[
        float, typer.Option(help="Probability with which --max-risk holds.")
    ] = 0.95,
    max_false_alarm: MaxFalseAlarm = None,
    seed: Seed = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the token that clients must show; or set {TOKEN}."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=MOST, help="Rows at a time.")] = 64,
    max_rows: Annotated[int, typer.Option(min=1, max=MOST, help="Rows in a request.")] = 256,
    max_body: Annotated[float, typer.Option(min=0.001, help="Megabytes of a request.")] = 8.0,
    max_queue: Annotated[int, typer.Option(min=1, max=MOST, help="Rows that may wait.")] = 1024,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a request, and for its answer.")
    ] = 30.0,
) -> None:
    """Answer texts or images over HTTP as `kepsvgp predict` does, until it is stopped.

    POST /predict takes {"texts": […]} or, in base64, {"images": […]}. Rows of requests that come
    at the same time are answered together. /docs says more; /health and /metrics are for those
    who watch over it.
    """
    from kepsvgp.cli.unfinished import warn_if_unfinished
    from kepsvgp.runs.folder import RunFolder
    from kepsvgp.serving import open_folder
    from kepsvgp.serving.http import Limits, Service
    from kepsvgp.serving.listen import bind, listen
    from kepsvgp.serving.stream import find_rule

    token = _token(token_file)
    limits = Limits(batch_size, max_rows, round(max_body * 1e6), max_queue, timeout)
    if RunFolder(model).config_file.exists():
        warn_if_unfinished(model)
    saved = open_folder(model, num_samples=samples, seed=seed)
    rule = find_rule(saved, max_risk, confidence, max_false_alarm)
    service = Service(saved, rule, limits, token)
    service.warm_up()
    sock = bind(host, port)
    if rule is not None:
        typer.echo(rule.words, err=True)
    if token is None and host not in ("127.0.0.1", "::1", "localhost"):
        typer.echo(f"warning: whoever reaches {host} may ask; no token is set", err=True)
    address = f"[{host}]" if ":" in host else host
    typer.echo(f"serving on http://{address}:{sock.getsockname()[1]}")
    listen(service, sock)


def _token(file: Path | None) -> str | None:
    """The token in a file or in the environment; never an argument, which others could see."""
    if file is None:
        found = os.environ.get(TOKEN)
    elif file.is_file():
        found = file.read_text(encoding="utf-8", errors="replace").strip()
    else:
        raise UserError(f"--token-file must be a file with a token; {file} is none.")
    if found is not None and (len(found) < 8 or not found.isascii() or not found.isprintable()):
        raise UserError("the token must be 8 plain characters or more; it is not.")
    return found
