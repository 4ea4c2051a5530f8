"""What the server takes and gives: for programs as OpenAPI, for people as a page."""

import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

_REFUSALS = {
    "401": "The bearer token is missing or wrong.",
    "408": "The body took too long to arrive.",
    "413": "The body, its rows or its images are too large.",
    "415": "The body is not application/json.",
    "422": "A row cannot be read; the error says which.",
    "503": "Too much waits. Try again after the seconds in Retry-After.",
}
_FITTED = {"type": ["number", "null"]}
_NUMBER = {"type": "number"}


def describe(
    field: str, classes: Sequence[str], max_rows: int, promise: str | None, *, secured: bool
) -> dict[str, Any]:
    """The OpenAPI document of a model that takes `texts` or `images`."""
    item = {"type": "string"} | ({"contentEncoding": "base64"} if field == "images" else {})
    rows = {"type": "array", "items": item, "minItems": 1, "maxItems": max_rows}
    request = {
        "type": "object",
        "properties": {field: rows},
        "required": [field],
        "additionalProperties": False,
    }
    answer = {
        "type": "object",
        "description": "As a line of `kepsvgp predict --out answers.jsonl`.",
        "properties": {
            "row": {"type": "string", "description": "Its number in the request, from 1."},
            "label": {"type": "string", "enum": list(classes)},
            "probability": _NUMBER,
            "total": _NUMBER | {"description": "Entropy in nats: aleatoric and epistemic."},
            "aleatoric": _NUMBER | {"description": "Mean entropy of the draws."},
            "epistemic": _NUMBER | {"description": "How much the draws disagree."},
            "novelty": _FITTED | {"description": "How foreign the input is; null if unknown."},
            "novelty_p": _FITTED | {"description": "Its p-value among familiar inputs."},
            "abstain": {
                "type": ["boolean", "null"],
                "description": promise or "null: this model has no rule for withholding answers.",
            },
            "reason": {"enum": ["", "unsure", "foreign", None], "description": "Why it abstains."},
        },
    }
    answers = {"type": "object", "properties": {"answers": {"type": "array", "items": answer}}}
    error = {"type": "object", "properties": {"error": {"type": "string"}}}
    predict = {
        "summary": f"Answers to {field}, with the uncertainty of each",
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": {"description": "One answer for each row.", "content": _json(answers)}}
        | {code: {"description": why, "content": _json(error)} for code, why in _REFUSALS.items()},
    }
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "kepsvgp", "version": version("kepsvgp")},
        "paths": {
            "/predict": {"post": predict},
            "/health": {"get": _plain("Whether the server runs. Needs no token.")},
            "/metrics": {"get": _plain("Counts, as Prometheus reads them.")},
        },
    }
    if secured:
        document["components"] = {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        }
        document["security"] = [{"token": []}]
    return document


def page(document: dict[str, Any]) -> str:
    """The same for people, without anything from elsewhere."""
    sections = []
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            heading = f"{method.upper()} {path}"
            summary, rest = about["summary"], {k: v for k, v in about.items() if k != "summary"}
            shown = json.dumps(rest, indent=2, ensure_ascii=False)
            sections.append(
                f"<h2><code>{html.escape(heading)}</code></h2><p>{html.escape(summary)}</p>"
                f"<details><summary>Schema</summary><pre>{html.escape(shown)}</pre></details>"
            )
    title = f"kepsvgp {document['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
        f'<h1>{title}</h1><p><a href="openapi.json">openapi.json</a></p>{"".join(sections)}</html>'
    )


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _plain(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "As said."}}}
