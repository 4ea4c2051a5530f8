"""One HTML file that needs nothing else: no network, no server, no other file.

The page's policy forbids every request and every script but its own two, which it names by
their hashes, so that text from the data could not run even if it were not escaped.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from kepsvgp.errors import UserError
from kepsvgp.files import write_atomic
from kepsvgp.inference.prediction import Prediction
from kepsvgp.report.context import BenchmarkContext, benchmark_context
from kepsvgp.report.examples import Source, find_source
from kepsvgp.report.models import Comparison, compare
from kepsvgp.report.payload import comparison_payload
from kepsvgp.report.tested import compare_tested
from kepsvgp.runs.folder import find_runs
from kepsvgp.serving.tested import Tested

# in the order in which they use each other
SCRIPTS = (
    "core", "selective", "chart", "reliability", "operating",
    "shapes", "shift", "inside", "examples", "novelty", "main",
)  # fmt: skip


def write_report(
    runs: Sequence[Path] | Mapping[str, Tested | Prediction],
    out: Path | str,
    *,
    checkpoint: str | None = None,
) -> Path:
    """Writes the report over some runs, or over predictions of any model, and says where it is.

    Args:
        runs: Run folders, or folders that hold runs. Seeds of one method are taken together. Or
            predictions with their labels, by the name of the model.
        out: The HTML file to write.
        checkpoint: Show this checkpoint of every run; None for the one each run selected.
    """
    if isinstance(runs, Mapping):
        shown = compare_tested(runs, title=Path(out).stem)
    else:
        comparisons = compare(find_runs(runs), checkpoint=checkpoint)
        shown = [(comparison, find_source(comparison)) for comparison in comparisons]
    # texts may hold half a surrogate pair, which no file can
    write_atomic(Path(out), make_page(shown).encode("utf-8", errors="replace"))
    return Path(out)


def make_page(comparisons: Sequence[tuple[Comparison, Source]]) -> str:
    """The page over some comparisons, each with its data, as text."""
    contexts = [benchmark_context(comparison, source) for comparison, source in comparisons]
    payloads = [comparison_payload(comparison, source) for comparison, source in comparisons]
    return _render(contexts, {"benchmarks": payloads})


def _render(contexts: Sequence[BenchmarkContext], data: dict[str, Any]) -> str:
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise UserError(
            "the report needs jinja2, which is not installed: pip install 'kepsvgp[report]'."
        ) from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    theme, style = _asset("js/theme.js"), _asset("page.css")
    body = "\n".join(_asset(f"js/{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{body}}})();\n'
    template = environment.from_string(_asset("page.html"))
    return template.render(
        title=", ".join(context.title for context in contexts),
        policy=_policy([theme, script], style),
        version=version("kepsvgp"),
        written=date.today().isoformat(),
        benchmarks=contexts,
        # our own files and escaped JSON: nothing in them is from the data as it came
        theme_script=Markup(theme),
        style=Markup(style),
        script=Markup(script),
        data=Markup(safe_json(data)),
    )


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _policy(scripts: Sequence[str], style: str) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return (files("kepsvgp.report") / "assets" / name).read_text(encoding="utf-8")
