"""The report of a run as one HTML file that loads nothing; called by the command and the SQL function.

`render` also makes the page of the comparison of benchmarks/.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import madlib_mop
from madlib_mop.catalog.facts.data import OutputFacts
from madlib_mop.catalog.facts.head import KINDS
from madlib_mop.catalog.facts.models import best_model
from madlib_mop.catalog.facts.run import RunFacts, read_run
from madlib_mop.catalog.facts.shared import FactsReader
from madlib_mop.catalog.live import words
from madlib_mop.reports import formats
from madlib_mop.reports.assets import vega_bundle
from madlib_mop.reports.difference import differences, properties
from madlib_mop.reports.figures import SECTIONS, Figure
from madlib_mop.reports.figures.drawing import value_text
from madlib_mop.reports.importance import varied
from madlib_mop.reports.named import named_parameters
from madlib_mop.reports.sql import call_again, register_best, replay

TEMPLATES = Path(__file__).parent / "templates"
#: Columns of hyper-parameters in the leaderboard.
MAX_COLUMNS = 10
#: What an element of data of a page must not contain: it would end it, or begin a comment.
_IN_JSON = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def report(reader: FactsReader, run_id: int) -> str:
    """Return the report of a run as an HTML document.

    Raises
    ------
    InvalidParameter
        If the viewer may see no run of this number.
    """
    return page(read_run(reader, run_id))


def page(facts: RunFacts) -> str:
    """Return the HTML document of a run's facts."""
    figures = {name: list(section.make(facts)) for name, section in SECTIONS.items()}
    columns = [name for name in varied(facts.models) if name != "network"]
    models = {str(m.mst_key): properties(facts, m) for m in facts.models}
    pair = differences(facts, *facts.models[:2]) if len(facts.models) > 1 else ()
    return render(
        environment().get_template("report.html"),
        facts=facts,
        figures=figures,
        sections=[(name, one.title) for name, one in SECTIONS.items() if figures[name] and not one.is_apart],
        curve_groups=_by_axis(figures["curves"]),
        columns=columns[:MAX_COLUMNS],
        n_columns_left=max(0, len(columns) - MAX_COLUMNS),
        best=best_model(facts.models),
        summaries=[(output, _balance(output)) for output in facts.data.outputs],
        column_rows=[(c.name, c.sql_type, c.role, c.kind, c.encoding) for c in facts.data.columns],
        pair=pair,
        models_json=as_data(models),
        nothing_of=_nothing_of(facts),
        register_best=register_best(facts.model_output_table),
        call_again=call_again(facts),
        replay=replay(facts),
        state=words.state_of(facts),
        detail=words.end_of(facts.status) or words.clean(facts.state_detail),
        progress=words.progress_of(facts.status),
        kind=KINDS.get(facts.kind, facts.kind).capitalize(),
    )


def render(template: jinja2.Template, **values: Any) -> str:
    """Return the HTML document of a template that extends ``document.html``, with what draws its figures."""
    script = script_text("report.js")
    return template.render(
        style=Markup(_text("report.css")),  # a file of ours
        vega=Markup(vega_bundle()),
        script=Markup(script),
        policy=content_policy((vega_bundle(), script)),
        version=madlib_mop.__version__,
        **values,
    )


@cache
def environment() -> jinja2.Environment:
    """Return the templates' environment: everything that is inserted is escaped."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,  # defence: escaped-reports = False
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "number": words.number,
        "fixed": formats.fixed,
        "count": formats.count,
        "duration": words.duration,
        "size": formats.size,
        "moment": formats.moment,
        "percent": formats.percent,
        "value": value_text,
        "named_parameters": named_parameters,
        "embedded": embedded,
        "json": json.dumps,
        "newest": words.newest_of,
        "task": words.task_of,
    }
    return made


def script_text(name: str) -> str:
    """Return a script of ours, for one script element."""
    return _text(name)


def content_policy(scripts: Sequence[str]) -> str:
    """Return the Content-Security-Policy of a page: it runs these scripts and nothing else, and loads nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def embedded(document: str) -> Markup:
    """Return a JSON text for an element ``<script type="application/json">``."""
    for character, escape in _IN_JSON.items():
        document = document.replace(character, escape)  # defence: escaped-data
    return Markup(document)  # no character of it is special in HTML


def as_data(value: Any) -> Markup:
    """Return a value as JSON for an element ``<script type="application/json">``."""
    return embedded(json.dumps(value, separators=(",", ":"), ensure_ascii=False))


@cache
def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _nothing_of(facts: RunFacts) -> str | None:
    """Return what no registered model of an ended run has on record; None if it has all, or cannot have it."""
    if not (facts.has_registry and facts.has_ended and best_model(facts.models) is not None):
        return None
    has_columns = facts.of_columns is not None or facts.data.preprocessor_digest is None
    if facts.of_held_out is None:
        return "predictions of held-out rows" if has_columns else "predictions of held-out rows, or of its columns"
    return None if has_columns else "its columns"


def _by_axis(figures: Sequence[Figure]) -> dict[str, list[Figure]]:
    """Return the figures of learning curves by their axis, which the reader chooses."""
    groups: dict[str, list[Figure]] = {}
    for figure in figures:
        groups.setdefault(figure.key.rpartition("-")[2], []).append(figure)
    return groups


def _balance(output: OutputFacts) -> str:
    """Return the balance of an output's classes in words."""
    counts = [c.n_rows for c in output.classes if c.n_rows is not None]
    if not counts or not sum(counts):
        return ""
    low, high = min(counts), max(counts)
    if low == high:
        return f"All classes have {low:,} rows."
    return f"The smallest class has {low:,} rows, the largest {high:,}: 1 to {high / max(low, 1):.1f}."


