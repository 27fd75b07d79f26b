"""Figures of a registered model of the run, on rows that neither trained nor chose it: confusion matrix, ROC curve,
precision and recall, reliability. Its record has them from its registration."""

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from madlib_mop.catalog.facts.findings import Confusion, OutputFindings, Reliability, VersionFindings
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import clean, number
from madlib_mop.reports.figures.drawing import COLOURS, QUIET, RAMP, data, readable_text, spec
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.formats import percent

#: Of so many classes, the cells of a confusion matrix have their numbers in them.
_MOST_LABELLED = 6
_UNIT = alt.Scale(domain=[0, 1])
_DIAGONAL = ({"x": 0, "y": 0}, {"x": 1, "y": 1})


def held_out(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures of each output of classes; none if no version of a registered model has held-out rows."""
    of_version = facts.of_held_out
    if of_version is None:
        return
    outputs = of_version.findings.outputs
    for place, output in enumerate(outputs):
        suffix, of = (f"-{place + 1}", f" of {output.output}") if len(outputs) > 1 else ("", "")
        rows = of_rows(of_version, output.n_rows, of_version.findings.held_out)
        yield _confusion(output, rows, suffix, of)
        if output.curves:
            yield _roc(output, rows, suffix, of)
            yield _precision(output, rows, suffix, of)
        if output.reliability:
            yield _reliability(output, rows, suffix, of)


def of_rows(version: VersionFindings, n_rows: int, name: str | None) -> str:
    """Return the sentence that says of which model and of which rows a figure is."""
    return f"Version {version.version} of the registered model {version.name}, on {n_rows:,} rows of {name}."


def class_names(classes: Sequence[str | None], n_others: int = 0) -> list[str]:
    """Return names of classes of which no two are the same; a figure's specification can hold them (`clean`)."""
    found: list[str] = []
    for label in [*classes, *([f"{n_others:,} others"] if n_others else [])]:
        first = name = "NULL" if label is None else clean(label)
        copies = 1
        while name in found:
            copies += 1
            name = f"{first} ({copies})"
        found.append(name)
    return found


def _confusion(output: OutputFindings, of: str, suffix: str, name: str) -> Figure:
    one = output.confusion
    names = class_names(one.classes, one.n_others)
    cells: list[dict[str, Any]] = [
        {"a": names[i], "p": names[j], "n": count, "s": round(count / max(sum(row), 1), 6)}
        for i, row in enumerate(one.counts)
        for j, count in enumerate(row)
    ]
    limit = alt.ExprRef(f"max(width / {len(names)} - 6, 8)")
    base = alt.Chart(data("cells")).encode(
        alt.X("p:N", sort=None, title=None, axis=alt.Axis(labelAngle=0, labelLimit=limit, labelOverlap="greedy")),
        alt.Y("a:N", sort=None, title=None),
        tooltip=[
            alt.Tooltip("a:N", title="actual"), alt.Tooltip("p:N", title="predicted"),
            alt.Tooltip("n:Q", title="rows", format=","), alt.Tooltip("s:Q", title="of the actual class", format=".1%"),
        ],
    )  # fmt: skip
    scale = alt.Scale(type="threshold", domain=[0.2, 0.4, 0.6, 0.8], range=list(RAMP))
    legend = alt.Legend(title="share of the actual class", format="~%", orient="top", direction="horizontal")
    boxes = base.mark_rect(stroke="var(--paper)", strokeWidth=2)
    layers: list[Any] = [boxes.encode(alt.Color("s:Q", scale=scale, legend=legend))]
    if len(names) <= _MOST_LABELLED:
        layers += readable_text(base.encode(alt.Text("n:Q", format=",")), fontWeight=600)
    rows, n_rows = table([(c["a"], c["p"], c["n"], percent(c["s"])) for c in cells if c["n"]])
    return Figure(
        key=f"confusion{suffix}",
        title=f"Confusion matrix{name}",
        description=f"{of} From top to bottom the actual classes, from left to right the predicted ones; right"
        " predictions are on the diagonal.",
        summary=_of_confusion(one, names),
        spec=spec(alt.layer(*layers), max(90, min(480, 40 * len(names))), cells=cells),
        headings=("actual", "predicted", "rows", "of the actual class"),
        rows=rows,
        n_rows=n_rows,
    )


def _of_confusion(one: Confusion, names: Sequence[str]) -> str:
    n_rows = sum(map(sum, one.counts))
    n_right = sum(row[i] for i, row in enumerate(one.counts) if i < len(one.classes))
    n_wrong, i, j = max(
        (count, i, j) for i, row in enumerate(one.counts) for j, count in enumerate(row) if i != j or len(row) == 1
    )
    right = f"The class of {n_right:,} of {n_rows:,} rows is predicted right"
    if one.n_others:
        right += ", not counting those of the other classes"
    if not n_wrong or i == j:
        return f"{right}."
    return f"{right}. The most frequent error: {n_wrong:,} rows of {names[i]} are predicted as {names[j]}."


def _roc(output: OutputFindings, of: str, suffix: str, name: str) -> Figure:
    names = class_names([curve.of_class for curve in output.curves])
    points, body = [], []
    for label, curve in zip(names, output.curves, strict=True):
        points.append({"l": label, "x": 0.0, "y": 0.0, "t": None, "o": -1})
        for place, one in enumerate(curve.points):
            rates = {"x": one.false_positive_rate, "y": one.recall}
            points.append({"l": label, **rates, "t": one.threshold, "o": place})
            body.append((label, number(one.threshold), number(one.false_positive_rate), number(one.recall)))
        points.append({"l": label, "x": 1.0, "y": 1.0, "t": None, "o": len(curve.points)})
    areas = [f"{label} {number(c.area)}" for label, c in zip(names, output.curves, strict=True) if c.area is not None]
    rows, n_rows = table(body)
    hints = [
        alt.Tooltip("l:N", title="class"), alt.Tooltip("t:Q", title="threshold", format=".4~g"),
        alt.Tooltip("x:Q", title="false positive rate", format=".3~f"),
        alt.Tooltip("y:Q", title="true positive rate", format=".3~f"),
    ]  # fmt: skip
    chart = _curves(names, "false positive rate", "true positive rate", hints)
    return Figure(
        key=f"roc{suffix}",
        title=f"ROC curve{name}",
        description=f"{of} For each threshold of a class's probability: the share of its rows that are found, and of"
        " the other rows that are taken for it. The diagonal is chance.",
        summary=f"Area under the curve: {', '.join(areas)}."
        if areas
        else "All rows have the same class, so there is no area under the curve.",
        spec=spec(alt.layer(_diagonal(), chart), 280, points=points, diagonal=_DIAGONAL),
        headings=("class", "threshold", "false positive rate", "true positive rate"),
        rows=rows,
        n_rows=n_rows,
    )


def _precision(output: OutputFindings, of: str, suffix: str, name: str) -> Figure:
    names = class_names([curve.of_class for curve in output.curves])
    points, body, shares = [], [], []
    for label, curve in zip(names, output.curves, strict=True):
        shares.append({"l": label, "y": curve.n_rows / output.n_rows})
        for place, one in enumerate(curve.points):
            rates = {"x": one.recall, "y": one.precision}
            points.append({"l": label, **rates, "t": one.threshold, "n": one.n_predicted, "o": place})
            cells = (number(one.threshold), number(one.recall), number(one.precision), one.n_predicted)
            body.append((label, *cells))
    rows, n_rows = table(body)
    hints = [
        alt.Tooltip("l:N", title="class"), alt.Tooltip("t:Q", title="threshold", format=".4~g"),
        alt.Tooltip("x:Q", title="recall", format=".3~f"), alt.Tooltip("y:Q", title="precision", format=".3~f"),
        alt.Tooltip("n:Q", title="rows predicted", format=","),
    ]  # fmt: skip
    colour = _colour(names)
    rules = alt.Chart(data("shares")).mark_rule(strokeDash=[4, 4], opacity=0.7).encode(alt.Y("y:Q"), colour)
    averages = [f"{label} {number(c.average_precision)}" for label, c in zip(names, output.curves, strict=True)]
    return Figure(
        key=f"precision-recall{suffix}",
        title=f"Precision and recall{name}",
        description=f"{of} For each threshold of a class's probability: the share of its rows that are found (recall),"
        " and how many of the rows found have it (precision). A dashed line is the share of the class in all rows.",
        summary=f"Average precision: {', '.join(averages)}.",
        spec=spec(
            alt.layer(rules, _curves(names, "recall", "precision", hints)), 280, points=points, shares=shares
        ),
        headings=("class", "threshold", "recall", "precision", "rows predicted"),
        rows=rows,
        n_rows=n_rows,
    )


def _reliability(output: OutputFindings, of: str, suffix: str, name: str) -> Figure:
    kinds = [_kind(one) for one in output.reliability]
    points, body = [], []
    for kind, one in zip(kinds, output.reliability, strict=True):
        for part in one.bins:
            points.append({"l": kind, "x": part.probability, "y": part.share, "n": part.n_rows})
            interval = f"{number(part.lower)} to {number(part.upper)}"
            body.append((kind, interval, part.n_rows, number(part.probability), number(part.share)))
    rows, n_rows = table(body)
    base = alt.Chart(data("points")).encode(
        alt.X("x:Q", title="predicted probability", scale=_UNIT),
        alt.Y("y:Q", title="share that is right", scale=_UNIT),
        _colour(kinds, "probabilities"),
        tooltip=[
            alt.Tooltip("l:N", title="probabilities"), alt.Tooltip("x:Q", title="mean probability", format=".3~f"),
            alt.Tooltip("y:Q", title="share that is right", format=".3~f"),
            alt.Tooltip("n:Q", title="rows", format=","),
        ],
    )  # fmt: skip
    size = alt.Size("n:Q", legend=None, scale=alt.Scale(range=[20, 300], zero=True))
    dots = base.mark_point(filled=True, opacity=0.8).encode(size)
    drawn = alt.layer(_diagonal(), base.mark_line(strokeWidth=2), dots)
    errors = [f"{kind} {number(one.error)}" for kind, one in zip(kinds, output.reliability, strict=True)]
    fitted = " The calibration was fitted to the same rows, so its own error is a little larger." * (len(kinds) > 1)
    return Figure(
        key=f"reliability{suffix}",
        title=f"Reliability{name}",
        description=f"{of} Rows by the probability of the class that is predicted: how probable it was, and how often"
        f" it was right. On the diagonal, probabilities are true. A larger dot stands for more rows.{fitted}",
        summary=f"Expected calibration error: {', '.join(errors)}.",
        spec=spec(drawn, 280, points=points, diagonal=_DIAGONAL),
        headings=("probabilities", "interval", "rows", "mean probability", "share that is right"),
        rows=rows,
        n_rows=n_rows,
    )


def _kind(one: Reliability) -> str:
    return "of the network" if one.calibration is None else f"calibrated ({one.calibration})"


def _curves(names: Sequence[str], x: str, y: str, hints: Sequence[alt.Tooltip]) -> Any:
    """Return the chart of one line for each class."""
    return alt.Chart(data("points")).mark_line(strokeWidth=2).encode(
        alt.X("x:Q", title=x, scale=_UNIT), alt.Y("y:Q", title=y, scale=_UNIT), _colour(names),
        order=alt.Order("o:Q"), tooltip=list(hints),
    )  # fmt: skip


def _colour(names: Sequence[str], title: str = "class") -> alt.Color:
    scale = alt.Scale(domain=list(names), range=list(COLOURS[: len(names)]))
    return alt.Color("l:N", title=title, scale=scale, legend=alt.Legend(title=title, orient="top"))


def _diagonal() -> Any:
    base = alt.Chart(data("diagonal")).mark_line(strokeDash=[4, 4], strokeWidth=1, color=QUIET)
    return base.encode(alt.X("x:Q"), alt.Y("y:Q"))
