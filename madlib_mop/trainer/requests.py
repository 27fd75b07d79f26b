"""What a request to the trainer says: its header's fields, read and checked; called by ``server.py``.

Nothing here imports Keras before a request is about a model.
"""

from typing import TYPE_CHECKING, NoReturn

from mop_backend.frames import Blob, Header

from madlib_mop.errors import MopError
from madlib_mop.trainer.process.failures import INTERNAL, RequestFailure, invalid_input

if TYPE_CHECKING:  # these import NumPy and Keras
    import numpy as np

    from madlib_mop.trainer.recipe import Recipe
    from madlib_mop.trainer.visits import Start


class Request(Header):
    """A request's header; a key that is missing is answered with its name."""

    def __missing__(self, key: str) -> NoReturn:
        raise malformed(f"{self['op']} lacks {key!r}")


def start_of(header: Request, blobs: list[Blob]) -> "Start":
    """Read what a visit starts from."""
    from madlib_mop.trainer.visits import Start

    if header.get("has_state"):
        if not blobs:
            raise malformed("a request with a state has no parts")
        taken_over = header.get("taken_over")
        return Start(
            parts=blobs,
            digest=header.get("digest"),
            weights_digest=header.get("weights_digest"),
            taken_over=taken_over is not None,
            keep_optimizer=bool((taken_over or {}).get("optimizer", True)),
            begins=bool(header.get("begins")),
        )
    if header.get("has_weights"):
        if len(blobs) != 1:
            raise malformed(f"a request with weights has {len(blobs)} blobs, expected 1")
        return Start(weights=blobs[0])
    return Start()


def members_of(header: Request, blobs: list[Blob]) -> "tuple[list[Recipe | None], list[Start]]":
    """Read the recipes and the starts of a fused group's places; the blobs are its members', one after the other."""
    from madlib_mop.trainer.recipe import Recipe

    recipes: list[Recipe | None] = []
    starts: list[Start] = []
    rest = list(blobs)
    blobs.clear()
    for member in (Request(op=header["op"], **(member or {})) for member in header["members"]):
        n_blobs = positive(member, "n_blobs", least=0) if "model" in member else 0
        recipes.append(Recipe.read(member["model"]) if "model" in member else None)
        starts.append(start_of(member, rest[:n_blobs]))
        del rest[:n_blobs]
    if not any(recipes) or rest:
        raise malformed(f"a fused group of {len(recipes)} places with {len(rest)} blobs too many")
    return recipes, starts


def columns_of(header: Request, blobs: list[Blob]) -> "list[np.ndarray]":
    """Read the columns of rows to predict. Raises RequestFailure (input) for columns that no model could take."""
    from madlib_mop.trainer.data.shards import buffer_array, check_finite

    if len(header["shapes"]) != len(blobs) or not blobs:
        raise invalid_input(f"a request to predict has {len(blobs)} columns and {len(header['shapes'])} shapes")
    xs = []
    for number, (shape, blob) in enumerate(zip(header["shapes"], blobs, strict=True)):
        is_index = number in header.get("index_inputs", ())
        xs.append(buffer_array(f"x{number + 1}", shape, blob, is_x=True, is_index=is_index))
        check_finite(f"x{number + 1}", xs[-1], 0)
    if len({len(x) for x in xs}) != 1:
        raise invalid_input(f"the columns to predict from have {[len(x) for x in xs]} rows")
    return xs


def key_of(header: Request) -> str:
    """Return the key of a model to predict with; "" where there is one only."""
    return str(header.get("key", ""))


def gpu_numbers_of(header: Request) -> list[int]:
    """Return the GPUs that a trainer may see. Raises RequestFailure (internal) for what is no list of numbers."""
    numbers = header.get("gpus") or []
    if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
        raise malformed(f"gpus of start must be a list of numbers, received {numbers!r}")
    return numbers


def positive(header: Request, key: str, least: int = 1) -> int:
    """Return a whole number of the header. Raises RequestFailure (input) if it is none, or less than the least."""
    value = header[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid_input(f"{key} of a request to the trainer must be {least} or more, received {value!r}")
    return value


def malformed(message: str) -> RequestFailure:
    """Return the failure of a request that the protocol does not know."""
    return RequestFailure(INTERNAL, MopError(f"malformed request to the trainer: {message}"))
