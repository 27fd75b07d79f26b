"""The commands export_model, export_parts and model_card: a model as a file of another program, and its card."""

from typing import TYPE_CHECKING

from mop_backend.frames import Blob
from mop_backend.keras_backends import BackendName

import madlib_mop
from madlib_mop.catalog.facts.layers import layers_in_words
from madlib_mop.driver.commands.scoring import describe_outputs
from madlib_mop.driver.data.weights import PART_BYTES
from madlib_mop.driver.exports.origin import ExportSource, read_source
from madlib_mop.driver.inference.model import TrainedModel, read_weights
from madlib_mop.driver.inference.registered import find_model
from madlib_mop.driver.inference.trainer import LocalTrainer
from madlib_mop.driver.session.call import Call
from madlib_mop.errors import Unsupported
from madlib_mop.exports.formats import CARD, MAX_BYTES, PREPROCESSOR, SIGNATURE, Format
from madlib_mop.exports.signature import ModelInput, ModelOutput, Signature, file_names
from madlib_mop.models.ensemble import input_dtypes
from madlib_mop.reports.card import CardFacts, InputColumn, card

if TYPE_CHECKING:  # imports NumPy
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor

#: What a file has besides the weights at least: the architecture and the names of the weights.
_LEAST_MORE_BYTES = 1 << 10
_FLOAT32_BYTES = 4


def export_model(call: Call) -> bytes:
    """Return a model in a file format, with its signature, its preprocessor and its card in it.

    Raises
    ------
    MopError
        If there is no such model, the caller may not export it, the format cannot express it, the file is larger than
        a value of PostgreSQL, or the model was changed meanwhile.
    """
    form = Format(call.arguments["format"])
    model, source = _find(call, "EXPORT")  # defence: right-to-export = _find(call, "PREDICT")
    _check_size(call, form, source.n_bytes + _LEAST_MORE_BYTES, "at least ")  # defence: size-before-export
    file = _file(call, form, model, source)
    _check_size(call, form, len(file))  # defence: size-of-an-export
    return bytes(file)


def export_parts(call: Call) -> list[memoryview]:
    """Return such a file of any size, in parts. Raises MopError as `export_model`, but for its size."""
    model, source = _find(call, "EXPORT")  # defence: right-to-export-parts = _find(call, "PREDICT")
    file = memoryview(_file(call, Format(call.arguments["format"]), model, source))
    return [file[start : start + PART_BYTES] for start in range(0, len(file), PART_BYTES)]


def _file(call: Call, form: Format, model: TrainedModel, source: ExportSource) -> Blob:
    """Return a model as a file. Raises MopError."""
    preprocessor = _preprocessor(model)
    signature = _signature(model, source, preprocessor)
    additions = {SIGNATURE: signature.to_json(), CARD: card(_facts(model, source, signature, preprocessor))}
    if model.preprocessor is not None:
        additions[PREPROCESSOR] = model.preprocessor
    request = {
        "op": "export_model",
        "model": model.request(compiled=False),
        "format": form.value,
        "inputs": [one.name for one in signature.inputs],
        "outputs": [one.name for one in signature.outputs],
        "additions": additions,
    }
    with LocalTrainer(call.session, backend=BackendName.TENSORFLOW) as trainer:  # it has all formats
        _, (file,) = trainer.ask(request, read_weights(call.session, model).only(source.digest))
    return file


def model_card(call: Call) -> str:
    """Return the card of a model as Markdown. Raises MopError if the caller may see no such model."""
    model, source = _find(call, "SEE")
    preprocessor = _preprocessor(model)
    return card(_facts(model, source, _signature(model, source, preprocessor), preprocessor))


def _find(call: Call, right: str) -> tuple[TrainedModel, ExportSource]:
    a = call.arguments
    model = find_model(call.session, call.function, a["model_table"], a["mst_key"], right)
    return model, read_source(call.session, model)


def _check_size(call: Call, form: Format, n_bytes: int, words: str = "") -> None:
    if n_bytes > MAX_BYTES:
        raise Unsupported(
            f"{call.function}: the model in format {form} has {words}{n_bytes:,} bytes, and a value of PostgreSQL at"
            f" most {MAX_BYTES:,}",
            hint="export_parts returns the file in parts. `madlib-mop export` and the Python client use it.",
        )


def _preprocessor(model: TrainedModel) -> "Preprocessor | None":
    """Return the model's preprocessor. Raises InvalidParameter if it contradicts the model."""
    if model.preprocessor is None:
        return None
    from madlib_mop.columns.preprocessors.preprocessor import Preprocessor
    from madlib_mop.driver.inference.fits import check_fit

    preprocessor = Preprocessor.from_json(model.preprocessor)
    check_fit(model, preprocessor)
    return preprocessor


def _signature(model: TrainedModel, source: ExportSource, preprocessor: "Preprocessor | None") -> Signature:
    inputs = file_names(model.shape.input_names)
    outputs = file_names([output.name for output in model.outputs], taken=inputs)
    return Signature(
        model.label,
        madlib_mop.__version__,
        source.digest,
        None if preprocessor is None else preprocessor.digest,
        tuple(_inputs(model, inputs, preprocessor)),
        tuple(_outputs(model, outputs)),
    )


def _inputs(model: TrainedModel, names: tuple[str, ...], preprocessor: "Preprocessor | None") -> list[ModelInput]:
    shape = model.shape
    tensors = preprocessor.tensors if preprocessor is not None else (None,) * len(names)
    found = []
    dtypes = input_dtypes(model.configuration.arch)
    layers = zip(names, shape.input_names, dtypes, shape.input_shapes, tensors, strict=True)
    for name, layer, dtype, row, tensor in layers:
        if row is None:
            row = tensor.shape if tensor is not None else (None,)
        is_divided = tensor is None or tensor.kind == "image"
        found.append(
            ModelInput(
                name, layer, dtype, (None, *row),
                None if tensor is None else tensor.name,
                model.normalizing_const if is_divided else 1.0,
            )
        )  # fmt: skip
    return found


def _outputs(model: TrainedModel, names: tuple[str, ...]) -> list[ModelOutput]:
    described = describe_outputs(model)
    if len(described) != len(model.outputs):
        raise Unsupported(
            f"{model.label} has {model.shape.n_outputs} outputs, and {len(model.outputs)} dependent columns"
        )
    found = []
    for name, layer, output, words in zip(names, model.shape.output_names, model.outputs, described, strict=True):
        labels = words["labels"]
        classes = None if labels is None else tuple(labels)
        rows = next((one for one in model.held_out if one.output == output.name), None)
        found.append(ModelOutput(name, layer, output.name, output.vartype, classes, output.loss, rows))
    return found


def _facts(
    model: TrainedModel, source: ExportSource, signature: Signature, preprocessor: "Preprocessor | None"
) -> CardFacts:
    columns = () if preprocessor is None else preprocessor.inputs
    return CardFacts(
        signature,
        layers_in_words(model.configuration.arch),
        source.n_bytes // _FLOAT32_BYTES,
        model.configuration.compile_params or None,
        model.configuration.fit_params or None,
        # defence: no-values-on-cards = tuple(InputColumn(c.name, c.spec.sql_type, str(c.fit)) for c in columns)
        tuple(InputColumn(column.name, column.spec.sql_type, column.spec.kind) for column in columns),
        source.origin,
        source.registration,
        source.ensemble,
    )
