"""Compiled functions that trainers hand to each other: loaded instead of compiled, with the same bits."""

import importlib.util

import pytest

from madlib_mop.trainer.backends.base.names import SHARING_FUNCTIONS, BackendName
from madlib_mop.trainer.data import state
from madlib_mop.trainer.server import Session, _handle
from tests.helpers.unit.cases import CASES
from tests.helpers.unit.trainer import Trainer, TrainerError

CASE = CASES[0]
ROWS = 53
INSTALLED = [name for name in BackendName if importlib.util.find_spec(name)]
SHARING = [name for name in INSTALLED if name in SHARING_FUNCTIONS]


def visit(trainer, functions=None):
    """Train and evaluate a model; return the weights, the evaluation, and the functions that were compiled, by key."""
    functions = functions or {}
    trainer.send_shard("s", *CASE.data(ROWS))
    head = {"model": CASE.request(), "shard": "s", "functions": list(functions)}
    trained, blobs = trainer.ask({"op": "train", "epoch": 1, "segment_id": 0, **head}, list(functions.values()))
    keys = trained.get("functions", [])
    parts, new = blobs[: len(blobs) - len(keys)], dict(zip(keys, blobs[len(blobs) - len(keys) :], strict=True))
    evaluated, blobs = trainer.ask({"op": "evaluate", **head, "functions": [], "has_state": True}, parts)
    new |= zip(evaluated.get("functions", []), blobs, strict=True)
    new = {key: function for key, function in new.items() if key.startswith("jit_step")}  # others may be too fast
    return state.weights_of(parts), (evaluated["loss"], evaluated["metrics"]), new


@pytest.mark.parametrize("backend", SHARING)
def test_a_trainer_loads_what_another_has_compiled(backend):
    """In the sandbox, where no file is read or written."""
    with (
        Trainer(backend=backend, sandbox=True, share_functions=True) as first,
        Trainer(backend=backend, sandbox=True, share_functions=True) as second,
        Trainer(backend=backend) as third,
    ):
        weights, evaluation, functions = visit(first)
        assert len(functions) == 2, "for full batches, and for the last one"
        loaded = visit(second, functions)
        assert loaded == (weights, evaluation, {})
        alone = visit(third)
        assert alone == (weights, evaluation, {}), "a trainer that does not share has the same bits"


class Fresh:
    """Stands for the compiled functions of a trainer that has compiled one."""

    def take(self, functions):
        assert not functions

    def new(self):
        return {"jit_step": b"machine code"}


@pytest.mark.parametrize("op", ["stats", "average_end", "metric_results", "train", "evaluate_fused"])
def test_only_visits_and_evaluations_return_functions(op):
    """Those who ask for anything else do not expect any; the driver compares all that the answer to ``start`` has."""
    session = Session(0)
    session.started, session.sharing._functions = True, Fresh()
    setattr(session, op, lambda header, blobs: ({"n": 1}, [b"state"]))
    answer, blobs = _handle(session, {"op": op}, [])
    if op in ("train", "evaluate_fused"):
        assert answer == {"ok": True, "n": 1, "functions": ["jit_step"]} and blobs == [b"state", b"machine code"]
    else:
        assert answer == {"ok": True, "n": 1} and blobs == [b"state"]


@pytest.mark.parametrize("backend", SHARING)
def test_a_damaged_function_is_compiled_again(backend):
    with (
        Trainer(backend=backend, share_functions=True) as first,
        Trainer(backend=backend, share_functions=True) as second,
    ):
        weights, evaluation, functions = visit(first)
        damaged = dict.fromkeys(functions, b"damaged")
        again = visit(second, damaged)
        assert again[:2] == (weights, evaluation) and functions.keys() == again[2].keys()


@pytest.mark.parametrize("backend", INSTALLED)
def test_a_trainer_that_does_not_share_takes_no_functions(backend):
    with Trainer(backend=backend) as trainer:
        with pytest.raises(TrainerError, match="takes no compiled functions"):
            visit(trainer, {"jit_step": b"machine code"})
        assert visit(trainer)[2] == {}


def test_backends_that_share_are_those_that_say_so():
    """The driver plans by the names, and trainers by what a backend can do."""
    for name in INSTALLED:
        with Trainer(backend=name, share_functions=True) as trainer:
            assert bool(visit(trainer)[2]) == (name in SHARING_FUNCTIONS)
