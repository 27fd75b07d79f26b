"""What the parameters of all methods of search have, and the checks of their values; each method adds its own."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, field, fields
from typing import Any

from madlib_mop.errors import InvalidParameter, not_whole
from madlib_mop.models.parameters.calls import is_int, is_number
from madlib_mop.models.parameters.literals import shorten, write_value

MAX_EPOCHS = 1_000_000
MAX_CONFIGURATIONS = 100_000
#: The value of start_from that stands for the earlier runs on tables like that of the search.
SIMILAR = "similar"
#: The meanings of parameters that several methods have.
N_CONFIGURATIONS = "number of configurations to try"
N_ITERATIONS = "number of iterations of each model"
_RUNS = re.compile(r"runs?\s+(\d{1,18}(?:\s*,\s*\d{1,18})*)", re.IGNORECASE)


def parameter(default: Any, meaning: str) -> Any:
    """Return a field of a method's parameters; ``meaning`` is its explanation in the manual."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """The parameters of all methods. All values are checked: InvalidParameter says which is wrong."""

    budget_s: float | None = parameter(None, "the search ends after this many seconds of training")
    start_from: str | None = parameter(
        None, "the earlier runs that the search learns from: `similar`, or a list of runs such as `runs 12, 15`"
    )

    def __post_init__(self) -> None:
        if self.budget_s is not None and not (is_number(self.budget_s) and self.budget_s > 0):
            raise InvalidParameter(f"budget_s must be a number of seconds above 0. Received: {self.budget_s!r}")
        if self.start_from is not None:
            object.__setattr__(self, "start_from", _start_from(self.start_from))

    @property
    def runs(self) -> tuple[int, ...]:
        """The run_ids that ``start_from`` names; none if it is ``similar`` or None."""
        return _run_ids(self.start_from)

    @property
    def given(self) -> tuple[str, tuple[int, ...]] | None:
        """The table of the configurations to try first, and some of its keys, none for all; None without a table."""
        return None

    @property
    def text(self) -> str:
        """The parameters as a user would write them, defaults included; those that are None are left out."""
        given = {one.name: getattr(self, one.name) for one in own_first(type(self))}
        return ", ".join(
            f"{name}={value if isinstance(value, str) and value.isidentifier() else write_value(value)}"
            for name, value in given.items()
            if value is not None
        )


def floor_log(number: int, base: int) -> int:
    """Return the whole part of a logarithm, exactly (in floats, log of 243 to the base 3 is below 5)."""
    power, exponent = base, 0
    while power <= number:
        power, exponent = power * base, exponent + 1
    return exponent


def own_first(kind: type[SearchParams]) -> list[Field[Any]]:
    """Return the fields of a method's parameters, those that all methods have last."""
    common = {one.name for one in fields(SearchParams)}
    return sorted(fields(kind), key=lambda one: one.name in common)


def whole(value: object, name: str, lowest: int, highest: int | None = None) -> None:
    """Raise InvalidParameter unless a value is a whole number in a range; ``highest`` None is no limit."""
    if not is_int(value) or value < lowest or (highest is not None and value > highest):
        if highest is None:
            raise not_whole(name, lowest, shorten(value))
        raise InvalidParameter(
            f"{name} must be a whole number from {lowest} to {highest:,}. Received: {shorten(value)}"
        )


def _start_from(value: object) -> str:
    """Return ``start_from`` in its usual form, each run once."""
    text = value.strip() if isinstance(value, str) else ""
    if text.lower() == SIMILAR:
        return SIMILAR
    if not _RUNS.fullmatch(text):
        raise InvalidParameter(
            f"start_from must be 'similar' or a list of runs such as 'runs 12, 15'. Received: {shorten(value)}",
            hint="Write e.g. start_from=similar, or start_from='runs 12, 15' with quotes, because the list has a comma."
            " The column run_id of madlib_mop.progress has the numbers of your runs.",
        )
    return f"runs {', '.join(map(str, _run_ids(text)))}"


def _run_ids(text: str | None) -> tuple[int, ...]:
    """Return the numbers of a list of runs, each once."""
    found = _RUNS.fullmatch(text or "")
    return tuple(dict.fromkeys(map(int, found[1].split(",")))) if found else ()
