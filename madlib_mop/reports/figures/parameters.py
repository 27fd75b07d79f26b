"""Figures of all hyper-parameters: their importance, and parallel coordinates; `slices` has those of some of them."""

from collections.abc import Iterator, Sequence

import altair as alt

from madlib_mop.catalog.facts.models import ModelFacts
from madlib_mop.catalog.facts.run import RunFacts
from madlib_mop.catalog.live.words import number
from madlib_mop.reports.figures.drawing import (
    COLOURS,
    data,
    in_words,
    labelled_bars,
    readable_text,
    score_colour,
    spec,
    value_text,
)
from madlib_mop.reports.figures.figure import Figure, table
from madlib_mop.reports.figures.positions import dimension
from madlib_mop.reports.figures.slices import slices, together
from madlib_mop.reports.formats import percent
from madlib_mop.reports.importance import Importance, importance, ranked, varied
from madlib_mop.reports.named import named_parameters

#: Parameters in one figure.
MAX_PARAMETERS = 8
_N_SLICES = 4
#: How far models with equal values lie apart, as a share of an axis.
_SPREAD = 0.06
_LEAST_MODELS = 2


def parameters(facts: RunFacts) -> Iterator[Figure]:
    """Yield the figures of a run's hyper-parameters; none if all models have the same ones."""
    models = ranked(facts)
    names = list(varied(models))
    if len(models) < _LEAST_MODELS or not names:
        return
    found = importance(facts)
    if found is not None:
        order = [name for name, _ in found.shares]
        names = order + [name for name in names if name not in order]
        yield _importance(facts, found)
    yield _parallel(facts, models, names[:MAX_PARAMETERS])
    yield slices(facts, models, names[:_N_SLICES])
    if len(names) >= 2:
        yield together(facts, models, names[0], names[1])


def _importance(facts: RunFacts, found: Importance) -> Figure:
    rows = [{"p": name, "s": round(share, 4), "t": percent(share)} for name, share in found.shares[:MAX_PARAMETERS]]
    share_of = alt.X("s:Q", title=f"share of the differences in {facts.score_name}", axis=alt.Axis(format="%"))
    hints = [alt.Tooltip("p:N", title="parameter"), alt.Tooltip("t:N", title="importance")]
    name, share = found.shares[0]
    left = f" Not all models have {', '.join(found.left_out)}, so it is left out." if found.left_out else ""
    body, n_rows = table([(name, percent(share)) for name, share in found.shares])
    return Figure(
        key="importance",
        title="Which parameters mattered",
        description=f"The share of the differences in {facts.score_name} between {found.n_models} models that each"
        f" parameter explains, by Optuna's evaluator {found.evaluator}.{left}",
        summary=f"{name} explains {percent(share)} of the differences.",
        spec=labelled_bars(rows, share_of, alt.ColorValue(COLOURS[0]), hints),
        headings=("parameter", "importance"),
        rows=body,
        n_rows=n_rows,
    )


def _parallel(facts: RunFacts, models: Sequence[ModelFacts], names: Sequence[str]) -> Figure:
    dimensions = [dimension(name, [named_parameters(m).get(name) for m in models]) for name in names]
    dimensions.append(dimension(facts.score_name, [m.score for m in models]))
    order = [d.name for d in dimensions]
    # the best model comes last, so that it is drawn above the other ones
    lines = [
        {"m": m.mst_key, "k": d.name, "p": round(p + _apart(i, len(models), d.is_discrete), 4), "s": m.score,
         "t": text}
        for d in dimensions
        for i, (m, p, text) in reversed(list(enumerate(zip(models, d.places, d.texts, strict=True))))
    ]  # fmt: skip
    ticks = [{"k": d.name, "p": p, "t": text} for d in dimensions for p, text in d.ticks]
    scale = alt.Scale(type="point", padding=0.4)
    x = alt.X("k:N", sort=order, title=None, scale=scale, axis=_dimension_axis(len(order)))
    y = alt.Y("p:Q", axis=None, scale=alt.Scale(domain=[-0.05, 1.05]))
    over = alt.selection_point(name="over", on="pointerover", fields=["m"], empty=False, clear="pointerout")
    hints = [
        alt.Tooltip("m:N", title="model"), alt.Tooltip("k:N", title="parameter"), alt.Tooltip("t:N", title="value"),
    ]  # fmt: skip
    wide = alt.when(over).then(alt.value(4)).otherwise(alt.value(1.5))
    drawn = alt.Chart(data("lines")).mark_line(opacity=0.75).encode(
        x, y, score_colour("s", facts), detail=["m:N"], strokeWidth=wide, tooltip=hints
    ).add_params(over)  # fmt: skip
    dots = alt.Chart(data("lines")).mark_point(filled=True, size=14, opacity=0.75).encode(
        x, y, score_colour("s", facts), tooltip=hints
    )  # fmt: skip
    texts = readable_text(alt.Chart(data("ticks")).encode(x, y, text="t:N"), align="right", dx=-8)
    top = models[0]
    body, n_rows = table([(m.mst_key, *_cells(m, names), number(m.score)) for m in models])
    return Figure(
        key="parallel",
        title="Parallel coordinates",
        description=f"Each line is a model; it crosses each parameter's axis at its value. The strongest colour has the"
        f" best fifth of {facts.score_name}. Models with equal values are drawn side by side."
        + _of_how_many(facts, models),
        summary=f"The best of {len(models):,} models, {top.mst_key}, has {in_words(top, names)}.",
        spec=spec(alt.layer(drawn, dots, *texts), 320, lines=lines, ticks=ticks),
        headings=("model", *names, facts.score_name),
        rows=body,
        n_rows=n_rows,
    )


def _dimension_axis(n: int) -> alt.Axis:
    limit = alt.ExprRef(f"width / {n} - 6")
    return alt.Axis(
        orient="top", labelAngle=0, grid=True, domain=False, ticks=False, labelFontWeight=600, labelLimit=limit
    )


def _apart(i: int, n: int, is_discrete: bool) -> float:
    return (0.5 - i / max(1, n - 1)) * _SPREAD if is_discrete else 0.0


def _cells(model: ModelFacts, names: Sequence[str]) -> list[str]:
    given = named_parameters(model)
    return [value_text(given[n]) if n in given else "" for n in names]


def _of_how_many(facts: RunFacts, models: Sequence[ModelFacts]) -> str:
    n = facts.status.n_models
    return "" if len(models) * 1.1 >= n else f" The lines are an even choice of {len(models):,} from {n:,} models."
