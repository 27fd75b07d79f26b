"""What a request to the trainer says: its header's fields, read and checked.

Nothing here imports Keras before a request is about a model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from mop_backend.frames import Blob, Header
from mop_backend.messages import BadMessage, ModelStart, of_request

from madlib_mop.errors import MopError
from madlib_mop.trainer.process.failures import INTERNAL, RequestFailure, invalid_input

if TYPE_CHECKING:  # these import NumPy and Keras
    import numpy as np

    from madlib_mop.trainer.recipe import Recipe
    from madlib_mop.trainer.visits import Start


_Message = TypeVar("_Message")


class Request(Header):
    """A request's header; a key that is missing is answered with its name."""

    def __missing__(self, key: str) -> NoReturn:
        raise malformed(f"{self['op']} lacks {key!r}")


def message_of(kind: type[_Message], header: Request) -> _Message:
    """Return a request as its class. Raises RequestFailure (internal) if it has not the fields of this class."""
    try:
        return of_request(kind, header)
    except BadMessage as error:
        raise malformed(str(error)) from None


def start_of(member: ModelStart, blobs: list[Blob]) -> "Start":
    """Return what a visit starts from; ``blobs`` are the member's."""
    from madlib_mop.trainer.visits import Start

    if member.has_state:
        if not blobs:
            raise malformed("a request with a state has no parts")
        return Start(
            parts=blobs,
            digest=member.digest,
            weights_digest=member.weights_digest,
            taken_over=member.taken_over is not None,
            keep_optimizer=bool((member.taken_over or {}).get("optimizer", True)),
            begins=member.begins,
        )
    if member.has_weights:
        if not blobs:
            raise malformed("a request with weights has no blobs")
        return Start(weights=list(blobs))
    return Start()


def members_of(
    members: Sequence[ModelStart | None], blobs: list[Blob]
) -> "tuple[list[Recipe | None], list[Start]]":
    """Return the recipes and the starts of a request's members; its blobs are theirs, one after the other."""
    from madlib_mop.trainer.recipe import Recipe

    recipes: list[Recipe | None] = []
    starts: list[Start] = []
    rest = list(blobs)
    blobs.clear()
    for member in members:
        n_blobs = 0 if member is None else member.n_blobs
        if n_blobs < 0:
            raise malformed(f"n_blobs of a member must be 0 or more. Received: {n_blobs}")
        recipes.append(None if member is None else Recipe.read(member.model))
        starts.append(start_of(member or ModelStart({}), rest[:n_blobs]))
        del rest[:n_blobs]
    if not any(recipes) or rest:
        raise malformed(f"a request for {len(recipes)} models has {len(rest)} blobs too many")
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


def positive(header: Header, key: str, least: int = 1) -> int:
    """Return a whole number of the header. Raises RequestFailure (input) if it is none, or less than the least."""
    value = header[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise invalid_input(f"{key} of a request to the trainer must be {least} or more, received {value!r}")
    return value


def malformed(message: str) -> RequestFailure:
    """Return the failure of a request that the protocol does not know."""
    return RequestFailure(INTERNAL, MopError(f"malformed request to the trainer: {message}"))
