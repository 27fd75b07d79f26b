"""Stored custom losses and metrics: their forms, their checks, and their transfer to a trainer.

Used by the driver, which never executes them, and by the trainer, which does (``trainer/custom.py``).
"""

import ast
import base64
import hashlib
import keyword
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mop_backend.frames import Header

from madlib_mop.errors import InvalidParameter, UnreadableText
from madlib_mop.models.parameters.keras_names import (
    LOSS_STRINGS,
    LOSSES,
    METRIC_STRINGS,
    METRICS,
    OLD_LOSSES,
    OLD_METRICS,
)
from madlib_mop.models.parameters.literals import shorten

_OF_KERAS = frozenset({*LOSSES, *METRICS, *LOSS_STRINGS, *METRIC_STRINGS, *OLD_LOSSES, *OLD_METRICS})
_WORD = re.compile(r"[^\W\d]\w*")
_PICKLE_PROTOCOLS = range(2, 6)  # dill does not write older protocols; their bytes could not be distinguished from text
_FORM = "Pass Python source as UTF-8 bytes, e.g. convert_to($$def my_loss(y_true, y_pred): ...$$, 'UTF8')."
_TOP_K = '''\
import keras


def {name}(y_true, y_pred):
    """Return 1 for a row whose class is among the {k} with the highest scores, else 0."""
    return keras.metrics.top_k_categorical_accuracy(y_true, y_pred, k=min({k}, y_pred.shape[-1]))
'''


@dataclass(frozen=True)
class CustomFunctions:
    """Functions by name, recorded by a run and sent to a trainer.

    Attributes
    ----------
    objects : mapping of str to bytes
        Python source in UTF-8, or a dill pickle.
    pickles : bool
        Whether a superuser has enabled pickles.
    """

    objects: Mapping[str, bytes] = field(default_factory=dict)
    pickles: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Names for compile parameters."""
        return frozenset(self.objects)

    def digest(self, names: Iterable[str]) -> str:
        """Return a digest of some functions, so two functions of the same name never share a graph; empty for none."""
        digests = [f"{name}:{hashlib.sha256(self.objects[name]).hexdigest()}" for name in sorted(names)]
        return hashlib.sha256("\0".join(digests).encode()).hexdigest() if digests else ""

    def as_request(self) -> Header | None:
        """Return the functions in JSON form, for the ``custom`` of a model's request; None for none."""
        if not self.objects:
            return None
        encoded = {name: base64.b64encode(value).decode() for name, value in self.objects.items()}
        return {"functions": encoded, "pickles": self.pickles}

    @classmethod
    def from_request(cls, custom: Header | None) -> "CustomFunctions":
        """Read the output of `as_request`; the SQL function custom_functions_of writes the same."""
        if custom is None:
            return cls()
        decoded = {name: base64.b64decode(text) for name, text in custom["functions"].items()}
        return cls(decoded, custom["pickles"] is True)


def is_pickle(value: bytes) -> bool:
    """Detect a pickle by its first two bytes; no UTF-8 text starts with them."""
    return len(value) > 1 and value[0] == 0x80 and value[1] in _PICKLE_PROTOCOLS


def check_name(name: str) -> None:
    """Raise InvalidParameter if a function of Keras has the name."""
    if name in _OF_KERAS:
        raise InvalidParameter(
            f"name is already the name of a loss or metric of Keras. Received: {name!r}",
            hint="Choose another name, so that compile_params is unambiguous.",
        )


def check_source(name: str, value: bytes) -> None:
    """Check, without running anything, that bytes are Python source which defines a function of that name.

    Raises
    ------
    UnreadableText
        If they are not UTF-8 text, or not Python.
    InvalidParameter
        If they do not define the name, or define it as something that does not take (y_true, y_pred).
    """
    what = f"custom function {name!r}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidParameter(f"{what}: a function in Python source cannot have that name. Received: {name!r}")
    found = [node for node in _definitions(_parse(value, what).body) if name in _names(node)]
    if not found:
        raise InvalidParameter(
            f"{what}: the source does not define {name}. Received: {shorten(value.decode('utf-8'))}", hint=_FORM
        )
    match found[-1]:
        case ast.FunctionDef(args=arguments) if not _takes_two(arguments):
            raise InvalidParameter(
                f"{what}: it must take two positional arguments, y_true and y_pred."
                f" Received: def {name}({ast.unparse(arguments)})"
            )
        case ast.AsyncFunctionDef() | ast.ClassDef() as other:
            kind = "a class" if isinstance(other, ast.ClassDef) else "an async function"
            raise InvalidParameter(
                f"{what} is {kind}, not a function. Received: {shorten(ast.unparse(other))}",
                hint="Write def name(y_true, y_pred): ..., which returns one value for each row.",
            )


def possible_names(compile_params: str | None) -> frozenset[str]:
    """Return every word of compile parameters that could be a custom function; not for training."""
    return frozenset(_WORD.findall(compile_params or "")) - _OF_KERAS


def top_k_name(k: int) -> str:
    """Return the name of the function for k."""
    return f"top_{k}_accuracy"


def top_k_source(k: int) -> bytes:
    """Write the source of the metric that is 1 for rows whose class is among the k best."""
    return _TOP_K.format(name=top_k_name(k), k=k).encode()


def _parse(value: bytes, what: str) -> ast.Module:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableText(
            f"{what}: the object is neither Python source in UTF-8 nor a dill pickle. Received: {value[:20]!r}...",
            hint=_FORM,
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        reason = f"line {error.lineno}: {error.msg}"
    except (ValueError, MemoryError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
    raise UnreadableText(f"{what}: the object is not Python source ({reason}). Received: {shorten(text)}", hint=_FORM)


def _definitions(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Return the statements that run when the source does, those in if, try and with too."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for inner in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _definitions(handler.body)


def _names(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return {alias.asname or alias.name for alias in names}
    return set()


def _takes_two(arguments: ast.arguments) -> bool:
    n_most = len(arguments.posonlyargs) + len(arguments.args)
    n_least = n_most - len(arguments.defaults)
    fits = n_least <= 2 and (n_most >= 2 or arguments.vararg is not None)
    return fits and all(default is not None for default in arguments.kw_defaults)
