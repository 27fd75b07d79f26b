"""The space of a search: architectures times the two grids of generate_model_configs; drawn from by the searches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from madlib_mop.models.parameters.search_grid import (
    DRAWING,
    Choices,
    Grid,
    GridChoice,
    Value,
    Values,
    as_range,
    checked_ids,
    iterate_choices,
    read_ranges,
    stream,
    write_choice,
)

_MAX_DRAWS_FOR_ONE = 100


@dataclass(frozen=True)
class Point:
    """One configuration of a space."""

    model_id: int
    choice: GridChoice

    @cached_property
    def texts(self) -> tuple[str, str]:
        """Compile and fit parameters as generate_model_configs writes them."""
        return write_choice(self.choice)

    @property
    def key(self) -> tuple[int, str, str]:
        """Equal for points whose models are trained with the same architecture and texts."""
        return self.model_id, *self.texts


@dataclass(frozen=True)
class GivenPoint:
    """One configuration that was written by hand; it need not be of the space.

    Attributes
    ----------
    model_id : int
    texts : tuple of (str, str)
        Compile and fit parameters.
    """

    model_id: int
    texts: tuple[str, str]


@dataclass(frozen=True)
class SearchSpace:
    """All configurations of a list of architectures and two grids, whose lists may be ranges.

    Parameters
    ----------
    model_ids : tuple of int
        Of the architecture table; sorted, without duplicates.
    compile_grid, fit_grid : Grid
    drawing : int
        The way of drawing from ranges (see `search_grid.DRAWING`); a search that an earlier version began has its own.
    """

    model_ids: tuple[int, ...]
    compile_grid: Grid
    fit_grid: Grid = field(default_factory=Grid)
    drawing: int = DRAWING

    @classmethod
    def read(
        cls,
        model_id_list: Sequence[int | None] | None,
        compile_params_grid: str | None,
        fit_params_grid: str | None,
        drawing: int = DRAWING,
    ) -> SearchSpace:
        """Read a user's space.

        Raises
        ------
        UnreadableText, InvalidParameter
            The list has no ids, or a grid cannot be read or drawn from.
        """
        model_ids = tuple(sorted(set(checked_ids(model_id_list))))
        return cls(model_ids, *read_ranges(compile_params_grid, fit_params_grid), drawing)

    def draw(self, random_state: int, seen: set[tuple[int, str, str]] | None = None) -> Iterator[Point]:
        """Draw points without end, the very ones that generate_model_configs' random search draws.

        A point that was drawn before is passed over, as there; but not more than 100 times in a row, so that a small
        space gives as many points as are asked for, some of them twice: other start weights make another model.

        Parameters
        ----------
        seen : set, optional
            What was drawn before; it is added to.
        """
        seen = set() if seen is None else seen
        ids = stream(random_state, "model_id")
        n_in_vain = 0
        for choice in iterate_choices(self.compile_grid, self.fit_grid, random_state, self.drawing):
            point = Point(self.model_ids[int(ids.integers(len(self.model_ids)))], choice)
            if point.key in seen and n_in_vain < _MAX_DRAWS_FOR_ONE:
                n_in_vain += 1
                continue
            n_in_vain = 0
            seen.add(point.key)
            yield point

    def examples(self) -> Iterator[tuple[str, str]]:
        """Return compile and fit parameters in which every value and both ends of every range occur.

        Few, unlike all combinations; the driver parses them, so that a value that no configuration can have is an
        error before any work.
        """
        fits = list(_one_by_one(self.fit_grid.choices))
        optimizers: list[tuple[int, Values] | tuple[None, None]] = [
            (which, one) for which, choices in enumerate(self.compile_grid.optimizers) for one in _one_by_one(choices)
        ]
        optimizers = optimizers or [(None, None)]
        compiles = list(_one_by_one(self.compile_grid.choices))
        which, optimizer = optimizers[0]
        first = GridChoice(compiles[0], fits[0], optimizer, which)
        chosen = itertools.chain(
            (replace(first, compile=one) for one in compiles),
            (replace(first, fit=one) for one in fits),
            (replace(first, optimizer=one, which=which) for which, one in optimizers),
        )
        yield from dict.fromkeys(write_choice(choice) for choice in chosen)


def derived(random_state: int, number: int) -> int:
    """Derive a random state of its own for one part of a search, e.g. a bracket."""
    return int(np.random.SeedSequence([random_state, number]).generate_state(1)[0])


def _one_by_one(choices: Choices) -> Iterator[Values]:
    """Return the first values together, then each other value with the first ones of the rest."""
    values = {name: _ends(name, items) for name, items in choices.items()}
    first = {name: items[0] for name, items in values.items()}
    yield first
    for name, items in values.items():
        for item in items[1:]:
            yield {**first, name: item}


def _ends(name: str, values: list[Value]) -> list[Value]:
    span = as_range(name, values)
    return values if span is None else [span.low, span.high]
