"""``class_weight='balanced'`` in fit parameters: computed from the classes' rows, and written out for trainers."""

import json
import re
from collections.abc import Mapping, Sequence

BALANCED = "balanced"
_PYTHON = re.compile(r"""(\bclass_weight\s*=\s*)(?:'balanced'|"balanced")""")
_JSON = re.compile(r'("class_weight"\s*:\s*)"balanced"')


def balanced_weights(counts: Sequence[int]) -> dict[int, float]:
    """Return a weight for each class that has rows: all rows / (number of such classes * the class's rows).

    Those of scikit-learn's ``compute_class_weight("balanced", ...)``: the mean over all rows is 1.

    Parameters
    ----------
    counts : sequence of int
        Rows of each class, in the order of the class values; padding has 0.
    """
    present = [number for number, count in enumerate(counts) if count]
    return {number: sum(counts) / (len(present) * counts[number]) for number in present}


def written_out(text: str, weights: Mapping[int, float]) -> str:
    """Return fit parameters with the weights in place of ``'balanced'``; others as they are."""
    replaced = _PYTHON.sub(lambda found: found[1] + _python(weights), text)
    return _JSON.sub(lambda found: found[1] + _json(weights), replaced)


def as_given(text: str, weights: Mapping[int, float]) -> str:
    """Return fit parameters as they were before the weights were written out."""
    return text.replace(_json(weights), f'"{BALANCED}"').replace(_python(weights), f"'{BALANCED}'")


def _python(weights: Mapping[int, float]) -> str:
    return repr(weights)


def _json(weights: Mapping[int, float]) -> str:
    return json.dumps({str(number): weight for number, weight in weights.items()})
