"""The parser of automl_params: a text such as ``R=9, eta=3`` in, a frozen dataclass with every default out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from madlib_mop.errors import InvalidParameter
from madlib_mop.models.parameters.calls import is_int, is_number, suggestion
from madlib_mop.models.parameters.literals import read_keywords, shorten, write_value

MAX_EPOCHS = 1_000_000
MAX_CONFIGURATIONS = 100_000
DEFAULT_METHOD = "hyperband"


@dataclass(frozen=True, kw_only=True)
class SearchParams:
    """What all searches take: ``budget_s``, seconds after which the search ends with the best so far, or None.

    Each is made with all values checked: InvalidParameter says which is wrong.
    """

    budget_s: float | None = None

    def __post_init__(self):
        if self.budget_s is not None and not (is_number(self.budget_s) and self.budget_s > 0):
            raise InvalidParameter(f"budget_s must be a number of seconds above 0. Received: {self.budget_s!r}")

    @property
    def text(self) -> str:
        """The parameters as a user would write them, defaults included; no budget is left out."""
        given = {field.name: getattr(self, field.name) for field in _own_first(type(self))}
        return ", ".join(
            f"{name}={value if isinstance(value, str) else write_value(value)}"
            for name, value in given.items()
            if value is not None
        )


@dataclass(frozen=True, kw_only=True)
class HyperbandParams(SearchParams):
    """``R``: most iterations of a round; ``eta``: one of so many goes on; ``skip_last``: rounds left out at the end."""

    R: int = 6
    eta: int = 3
    skip_last: int = 0

    def __post_init__(self):
        super().__post_init__()
        _whole(self.eta, "eta", 2)
        _whole(self.R, "R", 1, MAX_EPOCHS)
        _whole(self.skip_last, "skip_last", 0)
        if self.R < self.eta:
            raise InvalidParameter(f"R must not be less than eta. Received: R={self.R}, eta={self.eta}")
        if self.skip_last > floor_log(self.R, self.eta):
            raise InvalidParameter(
                f"skip_last must be at most {floor_log(self.R, self.eta)}, the whole part of log R to the base eta,"
                f" or no round is left. Received: {self.skip_last}"
            )


@dataclass(frozen=True, kw_only=True)
class HyperoptParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each; ``algorithm`` 'tpe' or 'rand'."""

    num_configs: int = 20
    num_iterations: int = 5
    algorithm: str = "tpe"

    def __post_init__(self):
        super().__post_init__()
        _whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        _whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)
        if not isinstance(self.algorithm, str) or self.algorithm.lower() not in ("tpe", "rand"):
            raise InvalidParameter(f"algorithm must be tpe or rand. Received: {self.algorithm!r}")
        object.__setattr__(self, "algorithm", self.algorithm.lower())


@dataclass(frozen=True, kw_only=True)
class TpeParams(SearchParams):
    """``num_configs`` models of ``num_iterations`` each."""

    num_configs: int = 20
    num_iterations: int = 5

    def __post_init__(self):
        super().__post_init__()
        _whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        _whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)


@dataclass(frozen=True, kw_only=True)
class AshaParams(SearchParams):
    """``num_configs`` models; rungs at ``r``, ``r * eta``, ... epochs, none above ``R``."""

    R: int = 9
    eta: int = 3
    r: int = 1
    num_configs: int = 27

    def __post_init__(self):
        super().__post_init__()
        _whole(self.eta, "eta", 2)
        _whole(self.R, "R", 1, MAX_EPOCHS)
        _whole(self.r, "r", 1)
        _whole(self.num_configs, "num_configs", 1, MAX_CONFIGURATIONS)
        if self.r > self.R:
            raise InvalidParameter(f"r must not be more than R. Received: r={self.r}, R={self.R}")


@dataclass(frozen=True, kw_only=True)
class PbtParams(SearchParams):
    """``population`` models of ``num_iterations`` each; every ``interval`` the worst ``quantile`` copies the best."""

    population: int = 8
    num_iterations: int = 10
    interval: int = 2
    quantile: float = 0.25

    def __post_init__(self):
        super().__post_init__()
        _whole(self.population, "population", 2, MAX_CONFIGURATIONS)
        _whole(self.num_iterations, "num_iterations", 1, MAX_EPOCHS)
        _whole(self.interval, "interval", 1)
        if not is_number(self.quantile) or not 0 < self.quantile <= 0.5:
            raise InvalidParameter(f"quantile must be above 0 and at most 0.5. Received: {self.quantile!r}")


METHODS: dict[str, type[SearchParams]] = {
    "hyperband": HyperbandParams,
    "hyperopt": HyperoptParams,
    "asha": AshaParams,
    "tpe": TpeParams,
    "pbt": PbtParams,
}


def method_name(text: str | None) -> str:
    """Return a method's name for what a user wrote, in any case; NULL is hyperband.

    Raises
    ------
    InvalidParameter
        There is no such method.
    """
    name = DEFAULT_METHOD if text is None else text.strip().lower()
    if name not in METHODS:
        raise InvalidParameter(f"automl_method is not known. Received: {text!r}", hint=suggestion(name, METHODS))
    return name


def parse_params(method: str, text: str | None) -> SearchParams:
    """Parse automl_params: ``name=value, ...``, or a JSON object; NULL and '' give the defaults, as do missing names.

    Names may be written in any case, but where two differ by it alone (asha's R and r).

    Raises
    ------
    UnreadableText
        The text does not parse.
    InvalidParameter
        A name is not one of the method's, or a value cannot be used.
    """
    kind = METHODS[method]
    if text is None or not text.strip():
        return kind()
    hint = f"Write e.g. {kind().text}."
    given, names = {}, [field.name for field in _own_first(kind)]
    for written, value in read_keywords(text, "automl_params", hint).items():
        alike = [name for name in names if name.lower() == written.lower()]
        name = written if written in names else alike[0] if len(alike) == 1 else None
        if name is None:
            raise InvalidParameter(
                f"automl_params: {method} has no parameter of that name. Received: {written!r}",
                hint=suggestion(written, names),
            )
        if name in given:
            raise InvalidParameter(f"automl_params: {name} is given twice. Received: {shorten(text)}", hint=hint)
        given[name] = value
    try:
        return kind(**given)
    except InvalidParameter as error:
        raise InvalidParameter(f"automl_params: {error.message}", hint=error.hint or hint) from None


def floor_log(number: int, base: int) -> int:
    """Return the whole part of a logarithm, exactly (in floats, log of 243 to the base 3 is below 5)."""
    power, exponent = base, 0
    while power <= number:
        power, exponent = power * base, exponent + 1
    return exponent


def _own_first(kind: type[SearchParams]):
    return sorted(fields(kind), key=lambda field: field.name == "budget_s")


def _whole(value, name: str, lowest: int, highest: int | None = None) -> None:
    if not is_int(value) or value < lowest or (highest is not None and value > highest):
        limit = f"from {lowest} to {highest:,}" if highest is not None else f"of {lowest} or more"
        raise InvalidParameter(f"{name} must be a whole number {limit}. Received: {shorten(value)}")
