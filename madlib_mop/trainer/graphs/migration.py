"""States of another backend, with which a run can begin: called by ``visits.py`` and ``fused_visits.py``.

A run has one backend. But a warm start may continue with a state of an earlier run on another one. Backends have the
same weights and variables of optimizers, in the same order and shapes; the state of their random numbers differs.
"""

from collections.abc import Callable, Sequence

import keras

from madlib_mop.errors import MopError
from madlib_mop.trainer.backends import choice
from madlib_mop.trainer.data.parts import GROUPS
from madlib_mop.trainer.data.state import DEFAULT_PART_BYTES, UNDECIDED, State, decode_state
from madlib_mop.trainer.graphs.variables import ModelVariables
from madlib_mop.trainer.process.failures import INTERNAL, RequestFailure


def own(
    state: State,
    begins: bool,
    build: Callable[[], keras.Model],
    groups: Sequence[str] = GROUPS,
    may_lack_optimizer: bool = False,
) -> State:
    """Return a state of this process's backend: the same one, or one with the weights and optimizer of another backend.

    Parameters
    ----------
    state : State
    begins : bool
        Whether a run begins with it.
    build : callable
        Returns the compiled model before its first visit; its random numbers are those of the result.
    groups : sequence of str
        The groups of the state that are needed.
    may_lack_optimizer : bool
        Whether optimizer variables that do not fit are left out of the result.

    Raises
    ------
    RequestFailure
        internal: it is of another backend, and the run has begun. model: it does not fit the model.
    """
    ours = choice.current().name
    if state.backend == ours:
        return state
    if not begins:  # defence: state-of-another-backend
        raise RequestFailure(INTERNAL, MopError(f"a state of the backend {state.backend} in a run on {ours}"))
    fresh = ModelVariables(build())
    if may_lack_optimizer and "optimizer" in groups and not fresh.may_move_in(state, "optimizer"):
        groups = [group for group in groups if group != "optimizer"]
    fresh.move_in(state, [group for group in groups if group != "variables"])
    return decode_state(fresh.encode(UNDECIDED, DEFAULT_PART_BYTES), groups)
