"""The signature of an exported model: its inputs, its outputs and what they mean; ``signature.json``.

The driver writes it. `madlib_mop.imports.signatures` reads and checks it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mop_backend.held_out import HeldOut

from madlib_mop.columns.preprocessors.canonical import ADDED, plain

FORMAT = 1


@dataclass(frozen=True)
class ModelInput:
    """One input of the network.

    Attributes
    ----------
    name : str
        In ONNX and SavedModel files: the name of the input.
    layer : str
        In Keras: the name of the input layer. The order of inputs is that of ``model.inputs``.
    dtype : str
        NumPy's name, such as ``float32`` and ``int32``.
    shape : tuple of (int or None)
        Of a batch; None stands for any size.
    source : str or None
        The name of the preprocessor's tensor. None without a preprocessor: a column of arrays or images.
    divide_by : float
        Before the network gets values, they are converted to float32 and divided by this float32 number. 1 for indices
        and for numbers that a preprocessor has scaled.
    """

    name: str
    layer: str
    dtype: str
    shape: tuple[int | None, ...]
    source: str | None
    divide_by: float = 1.0


@dataclass(frozen=True)
class ModelOutput:
    """One output of the network: float32 (n_rows, ...).

    Attributes
    ----------
    name : str
        In ONNX and SavedModel files: the name of the output.
    layer : str
        In Keras: the name of the layer. The order of outputs is that of ``model.outputs``.
    target : str
        The dependent column.
    sql_type : str
        Its type.
    classes : tuple of (str or None), or None
        The class of each value of a row, as text; None among them is the class NULL. One value for two classes is the
        score of the second. None: the values are predicted numbers, or their classes are unknown.
    loss : str or None
        The name of its loss, if it is known.
    held_out : HeldOut or None
        The scores of rows that neither trained nor chose the model, if its version has them.
    """

    name: str
    layer: str
    target: str
    sql_type: str
    classes: tuple[str | None, ...] | None
    loss: str | None = None
    held_out: HeldOut | None = field(default=None, metadata=ADDED)


@dataclass(frozen=True)
class Signature:
    """What an exported model takes and returns.

    Attributes
    ----------
    model : str
        Where it comes from, such as ``mst_key 1 of public.models`` or ``churn@3``.
    library : str
        The version of madlib_mop.
    weights_digest : str
        SHA-256 of the weights: float32, flattened, in the order of Keras' ``get_weights()``.
    preprocessor_digest : str or None
        SHA-256 of the preprocessor's canonical text; None for a model of arrays.
    inputs : tuple of ModelInput
    outputs : tuple of ModelOutput
    format : int
        Of this document.
    """

    model: str
    library: str
    weights_digest: str
    preprocessor_digest: str | None
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    format: int = FORMAT

    def to_json(self) -> str:
        """Return the document."""
        return json.dumps(plain(self), indent=2, ensure_ascii=False) + "\n"


def file_names(names: Sequence[str], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """Return names of inputs or outputs that all file formats accept: letters, digits and _; no two are the same.

    Examples
    --------
    >>> file_names(["numbers", "home town", "home-town"])
    ('numbers', 'home_town', 'home_town_2')
    """
    found: list[str] = []
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name) or "x"
        plain = plain if plain[0].isalpha() else f"x{plain}"
        unused, number = plain, 1
        while unused.lower() in {other.lower() for other in (*found, *taken)}:
            number += 1
            unused = f"{plain}_{number}"
        found.append(unused)
    return tuple(found)
