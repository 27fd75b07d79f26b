"""The card of a model as Markdown: what it is, what it was trained on, how good it is, and what people must fill in.

The sections are those of Mitchell et al., Model Cards for Model Reporting, 2019 (https://arxiv.org/abs/1810.03993), as
far as the record knows them. The driver collects the facts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from madlib_mop.catalog.facts.head import FUNCTIONS, KINDS
from madlib_mop.catalog.live.words import clean, number
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature

_TO_FILL_IN = "*To be filled in.*"
_MAX_CLASSES, _MAX_TEXT = 20, 500
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~#&])")


@dataclass(frozen=True)
class CardVisit:
    """One visit that trained the model: the number of its rows, and the SHA-256 of these rows."""

    epoch: int
    segment_id: int
    n_rows: int
    rows_digest: str | None


@dataclass(frozen=True)
class CardOrigin:
    """The run that trained a model, as far as the caller may see it.

    Attributes
    ----------
    run_id : int
    epoch : int or None
        The epoch of the weights.
    kind, source_table, validation_table : str or None
    seed, parent_run_id, cloned_from : int or None
    versions : mapping of str to str
        Of the software that trained.
    metrics : mapping of str to float
        Those of the weights, by data set and name, such as ``validation_accuracy``.
    visits : tuple of CardVisit
        In the order in which they trained the weights.
    """

    run_id: int
    epoch: int | None
    kind: str | None
    source_table: str | None
    validation_table: str | None
    seed: int | None
    parent_run_id: int | None
    cloned_from: int | None
    versions: Mapping[str, str]
    metrics: Mapping[str, float | None]
    visits: tuple[CardVisit, ...]

    @property
    def newest_visits(self) -> dict[int, CardVisit]:
        """The newest visit of each segment."""
        return {visit.segment_id: visit for visit in self.visits}


@dataclass(frozen=True)
class CardMember:
    """One member of an ensemble.

    Attributes
    ----------
    mst_key : int
        Its key in the table of the members.
    share : float
        Its weight in the average; the shares of all members add up to 1.
    metric : float or None
        The ensemble's metric of the member alone, on the validation table.
    run_id : int or None
        The run that trained it, if it is known.
    """

    mst_key: int
    share: float
    metric: float | None
    run_id: int | None


@dataclass(frozen=True)
class MemberRun:
    """A run that trained members of an ensemble: its packed tables, and the number of training rows."""

    run_id: int
    source_table: str
    validation_table: str | None
    n_rows: int | None


@dataclass(frozen=True)
class Ensemble:
    """What an ensemble is made of.

    Attributes
    ----------
    table : str
        The output table of the members.
    metric : str or None
        ``loss`` or ``accuracy``: the metric that chose the members.
    members : tuple of CardMember
        The one with the largest share first.
    runs : tuple of MemberRun
        Those that the caller may see.
    metrics : mapping of str to (float or None)
        Of the ensemble, by data set and name, such as ``validation_loss``.
    """

    table: str
    metric: str | None
    members: tuple[CardMember, ...]
    runs: tuple[MemberRun, ...]
    metrics: Mapping[str, float | None]


@dataclass(frozen=True)
class Registration:
    """The version of a registered model."""

    name: str
    version: int
    registered_by: str
    registered_at: str
    note: str | None


@dataclass(frozen=True)
class InputColumn:
    """One input column of an ordinary table: what the encoder does with it, without values of its rows."""

    name: str
    sql_type: str
    kind: str


@dataclass(frozen=True)
class CardFacts:
    """Everything that a card says.

    Attributes
    ----------
    signature : Signature
    layers : str
        In words.
    n_weights : int or None
        How many numbers the weights are.
    compile_params, fit_params : str or None
    columns : tuple of InputColumn
        () for a model of arrays.
    origin : CardOrigin or None
    registration : Registration or None
    ensemble : Ensemble or None
        None for a model that is no ensemble.
    """

    signature: Signature
    layers: str
    n_weights: int | None
    compile_params: str | None
    fit_params: str | None
    columns: tuple[InputColumn, ...]
    origin: CardOrigin | None
    registration: Registration | None
    ensemble: Ensemble | None = None


def card(facts: CardFacts) -> str:
    """Return the card as Markdown."""
    sections = (_head, _intended_use, _data, _metrics, _inputs_and_outputs, _architecture, _lineage, _limits)
    return "\n".join(line for section in sections for line in section(facts))


def _head(facts: CardFacts) -> Iterator[str]:
    yield f"# Model {plain(facts.signature.model)}"
    yield ""
    registration = facts.registration
    if registration is not None:
        yield (
            f"Version {registration.version} of the registered model {plain(registration.name)}. Registered by"
            f" {plain(registration.registered_by)} at {plain(registration.registered_at)}."
        )
        yield ""
        if registration.note:
            yield f"> {plain(registration.note)}"
            yield ""


def _intended_use(facts: CardFacts) -> Iterator[str]:
    yield from (
        "## Intended use", "", f"- Purpose and users: {_TO_FILL_IN}", f"- Uses that are out of scope: {_TO_FILL_IN}",
        f"- Owner and contact: {_TO_FILL_IN}", "",
    )  # fmt: skip


def _data(facts: CardFacts) -> Iterator[str]:
    yield from ("## Data", "")
    origin, ensemble = facts.origin, facts.ensemble
    if ensemble is not None and origin is None:
        yield from _data_of_members(ensemble)
    elif origin is None:
        yield "The record of the run that trained these weights is not there, or you may not see it."
        yield ""
    else:
        n_rows = sum(visit.n_rows for visit in origin.newest_visits.values())
        yield from _table(
            ("", ""),
            [
                ("training table (packed)", origin.source_table),
                ("training rows", f"{n_rows:,}" if n_rows else None),
                ("validation table (packed)", origin.validation_table),
            ],
        )
    yield f"Where the data come from, and how they were collected and labelled: {_TO_FILL_IN}"
    yield ""


def _data_of_members(ensemble: Ensemble) -> Iterator[str]:
    yield "The model is an ensemble. These runs trained its members:" if ensemble.runs else (
        "The model is an ensemble. The record of the runs that trained its members is not there, or you may not see it."
    )
    yield ""
    rows = [
        (run.run_id, run.source_table, run.validation_table or "none", f"{run.n_rows:,}" if run.n_rows else "unknown")
        for run in ensemble.runs
    ]
    if rows:
        head = ("run", "training table (packed)", "validation table (packed)", "training rows")
        yield from _table(head, rows)


def _metrics(facts: CardFacts) -> Iterator[str]:
    yield from ("## Metrics", "")
    for output in facts.signature.outputs:
        if (held_out := output.held_out) is not None:
            calibrated = f", and calibrate its probabilities ({held_out.calibration})" if held_out.calibration else ""
            yield (
                f"{held_out.n_rows:,} held-out rows of {plain(held_out.table)} give intervals or sets for"
                f" {plain(output.target)}{calibrated}."
            )
            yield ""
    metrics = facts.origin.metrics if facts.origin is not None else {}
    if not metrics and facts.ensemble is not None:
        metrics = facts.ensemble.metrics
    if not metrics:
        yield "No metrics are recorded."
        yield ""
        return
    rows = [(*_data_set_of(name), _figure(value)) for name, value in sorted(metrics.items())]
    yield from _table(("data", "metric", "value"), rows)


def _inputs_and_outputs(facts: CardFacts) -> Iterator[str]:
    signature = facts.signature
    yield from ("## Inputs and outputs", "")
    if facts.columns:
        yield "Rows have these columns. The preprocessor turns them into the inputs of the network."
        yield ""
        yield from _table(("column", "type", "kind"), [(c.name, c.sql_type, c.kind) for c in facts.columns])
    yield from _table(("input of the network", "type", "shape", "of", "divided by"), map(_input_row, signature.inputs))
    yield from _table(("output", "predicts", "type", "classes"), map(_output_row, signature.outputs))


def _architecture(facts: CardFacts) -> Iterator[str]:
    yield from ("## Architecture and training", "")
    n_weights = f"{facts.n_weights:,}" if facts.n_weights is not None else None
    yield from _table(
        ("", ""),
        [
            ("layers", facts.layers),
            ("weights", n_weights),
            ("compile parameters", facts.compile_params),
            ("fit parameters", facts.fit_params),
        ],
    )


def _lineage(facts: CardFacts) -> Iterator[str]:
    origin, signature = facts.origin, facts.signature
    yield from ("## Lineage", "")
    rows: list[tuple[str, object]] = [("SHA-256 of the weights", signature.weights_digest)]
    if signature.preprocessor_digest is not None:
        rows.append(("SHA-256 of the preprocessor", signature.preprocessor_digest))
    rows.append(("exported by", f"madlib_mop {signature.library}"))
    if origin is None:
        yield from _table(("", ""), rows)
        yield from _members(facts.ensemble)
        return
    versions = ", ".join(f"{name} {version}" for name, version in sorted(origin.versions.items()))
    yield from _table(
        ("", ""),
        [
            *rows,
            ("run", origin.run_id),
            ("kind of the run", KINDS.get(origin.kind or "", origin.kind)),
            ("function", FUNCTIONS.get(origin.kind or "")),
            ("epoch of the weights", origin.epoch),
            ("seed", origin.seed),
            ("continues run", origin.parent_run_id),
            ("clone of model", origin.cloned_from),
            ("trained with", versions or None),
        ],
    )
    if origin.visits:
        yield "Rows of each segment, by the last visits:"
        yield ""
        shown = [(v.segment_id, f"{v.n_rows:,}", v.rows_digest) for _, v in sorted(origin.newest_visits.items())]
        yield from _table(("segment", "rows", "SHA-256 of the rows"), shown)
    yield from _members(facts.ensemble)


def _members(ensemble: Ensemble | None) -> Iterator[str]:
    if ensemble is None:
        return
    yield f"The model averages the outputs of these models of {plain(ensemble.table)}:"
    yield ""
    metric = "none" if ensemble.metric is None else f"validation {plain(ensemble.metric)}"
    rows = [
        (
            member.mst_key,
            f"{member.share:.4g}",
            _figure(member.metric),
            "unknown" if member.run_id is None else member.run_id,
        )
        for member in ensemble.members
    ]
    yield from _table(("mst_key", "share", metric, "run"), rows)


def _limits(facts: CardFacts) -> Iterator[str]:
    yield from ("## Limits and risks", "", f"- Known limits, biases and risks: {_TO_FILL_IN}")
    yield f"- Ethical considerations: {_TO_FILL_IN}"
    yield ""


def plain(text: object) -> str:
    """Return a text as Markdown that shows it as it is: on one line, without markup, of a limited length.

    Texts come from other roles. Control characters and marks of direction are shown as escapes: a terminal must not
    obey them.
    """
    words = " ".join(str(text).split())
    words = clean(words)  # defence: text-of-a-card = words
    words = words if len(words) <= _MAX_TEXT else f"{words[: _MAX_TEXT - 4]} ..."
    return _SPECIAL.sub(r"\\\1", words)


def _table(head: Sequence[str], rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    """Yield a table, without the rows whose last value is None."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        if row[-1] is not None:
            yield f"| {' | '.join(plain('' if cell is None else cell) for cell in row)} |"
    yield ""


def _figure(value: float | None) -> str:
    return "nan" if value is None else number(value, 6)


def _data_set_of(name: str) -> tuple[str, str]:
    """Return the data set and the name of a metric such as ``validation_accuracy``."""
    data_set, _, metric = name.partition("_")
    return data_set, metric


def _input_row(one: ModelInput) -> tuple[object, ...]:
    shape = " x ".join("any" if size is None else str(size) for size in one.shape[1:]) or "1"
    return one.name, one.dtype, shape, one.source or one.layer, f"{one.divide_by:g}"


def _output_row(one: ModelOutput) -> tuple[object, ...]:
    if one.classes is None:
        return one.name, one.target, one.sql_type, "none: numbers"
    shown = ", ".join("NULL" if value is None else value for value in one.classes[:_MAX_CLASSES])
    more = f", ... ({len(one.classes):,} in all)" if len(one.classes) > _MAX_CLASSES else ""
    return one.name, one.target, one.sql_type, shown + more
