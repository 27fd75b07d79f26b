"""Matches the weights of a file with the layers of a model, by order or by name, and sets them.

All of a file is matched before anything is set. Three kinds of files: Keras 3's (each layer's variables under its
place), legacy HDF5 (a list of weights for each layer's name), and safetensors (an array for each weight's name).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt

from madlib_mop.errors import InvalidParameter, MopError, UnreadableText, Unsupported
from madlib_mop.exports.archives import Data
from madlib_mop.exports.tensors import FileTensor, read_header
from madlib_mop.imports.weights.hdf5 import WeightsFile
from madlib_mop.imports.weights.layers import Unit, units_of

Array = npt.NDArray[np.generic]
Shapes = Sequence[tuple[int, ...]]
_N_SHOWN = 10
#: Of a weight's name that are compared: more than any model of Keras has.
_MOST_PARTS = 32
_LAYER = re.compile(r"layers/[^/]+(?:/layers/[^/]+)*")
#: States of random numbers, which are saved beside weights.
_NO_WEIGHTS = re.compile(r"(^|/)(seed_generator|_random_generator|_random_seed_generator)/")
_BY_NAME = "To match layers by their names, and leave out others, pass by_name => true."


@dataclass
class Match:
    """Which layers get weights.

    Attributes
    ----------
    taken, kept : list of str
        Layers of the model that get weights of the file, and that keep their own.
    unused : list of str
        Layers, or weights, that only the file has.
    """

    taken: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)


class WeightsSource(Protocol):
    """The weights of a file."""

    def load(self, model: keras.Model, by_name: bool, skip_mismatch: bool) -> Match:
        """Set weights of a model.

        Parameters
        ----------
        model : keras.Model
        by_name : bool
            False: each layer of the model must be in the file, in the same order, and no other. True: layers are
            matched by name; others keep their weights.
        skip_mismatch : bool
            Whether layers that do not fit are left as they are.

        Raises
        ------
        InvalidParameter
            If layers or shapes do not fit.
        UnreadableText, Unsupported
            If the file is damaged, or has something that is not read.
        """


def source_of(file: WeightsFile) -> WeightsSource:
    """Return the weights of an HDF5 file, of Keras 3 or of the legacy form; not for the client.

    A list of names of the legacy form can have one long text of the file very many times, which takes much memory.
    """
    for root in ("", "model_weights"):
        if root in file.groups and (names := _listed(file, root, "layer_names")) is not None:
            return LegacyWeights(file, root, names)
    return KerasWeights(file)


class _Plan:
    """What is to be set, and the match; set at the end, when everything fits."""

    def __init__(self, by_name: bool, skip_mismatch: bool):
        self.match = Match()
        self._by_name, self._skip = by_name, skip_mismatch
        self._steps: list[Callable[[], None]] = []

    def take(self, name: str, wanted: Shapes, found: Shapes, step: Callable[[], None]) -> None:
        """Plan to set a layer, if its shapes fit. Raises InvalidParameter."""
        if list(wanted) == list(found):
            self.match.taken.append(name)
            self._steps.append(step)
        elif self._skip:
            self.match.kept.append(name)
        else:
            raise _mismatch(name, wanted, found)

    def miss(self, name: str, where: str) -> None:
        """Note a layer that the file does not have. Raises InvalidParameter unless layers are matched by name."""
        if not self._by_name and not self._skip:
            raise InvalidParameter(f"the file has no weights for layer {name!r}{where}", hint=_BY_NAME)
        self.match.kept.append(name)

    def leave(self, names: Sequence[str]) -> None:
        """Note what only the file has. Raises InvalidParameter unless layers are matched by name."""
        if names and not self._by_name and not self._skip:
            raise InvalidParameter(
                f"the file has weights of layers that the model does not have: {_shown(names)}", hint=_BY_NAME
            )
        self.match.unused.extend(names)

    def execute(self, model: keras.Model, names: Sequence[str]) -> Match:
        """Set the weights. Raises InvalidParameter if there are none to set; ``names`` are those of the file."""
        if not self._steps and (self.match.kept or names):
            own = [unit.name for unit in units_of(model)]
            raise InvalidParameter(
                "no layer of the file fits a layer of the model",
                hint=f"The file has {_shown(names) or 'none'}; the model has {_shown(own) or 'none'}.",
            )
        for step in self._steps:
            step()
        return self.match


class KerasWeights:
    """The weights of a ``.keras`` or ``.weights.h5`` file of Keras 3."""

    def __init__(self, file: WeightsFile):
        self._file = file

    def load(self, model: keras.Model, by_name: bool, skip_mismatch: bool) -> Match:
        """See `WeightsSource.load`."""
        plan, used = _Plan(by_name, skip_mismatch), set[str]()
        places = self._places() if by_name else {}
        for unit in units_of(model):
            place = places.get(unit.name) if by_name else unit.place
            found = {} if place is None else self._arrays(unit, place)
            used.update(path for paths in found.values() for path in paths.values())
            if place is None or not any(found.values()):
                plan.miss(unit.name, "" if by_name else f" at {unit.place}")
                continue
            self._take(plan, unit, found)
        plan.leave(self._unused(used))
        return plan.execute(model, list(places) or self._unused(set()))

    def _arrays(self, unit: Unit, place: str) -> dict[str, dict[str, str]]:
        """Return the paths of the arrays of each part, by the part's place and the array's name."""
        return {
            part.place: self._file.entry(f"{place}/{part.place}" if part.place else place) for part in unit.parts
        }

    def _take(self, plan: _Plan, unit: Unit, found: Mapping[str, Mapping[str, str]]) -> None:
        wanted, stored = list[tuple[int, ...]](), list[tuple[int, ...]]()
        for part in unit.parts:
            shapes, paths = part.shapes(), found[part.place]
            wanted += [shape for _, shape in sorted(shapes.items(), key=_number)]
            stored += [self._file.shape(path) for _, path in sorted(paths.items(), key=_number)]

        def assign() -> None:
            for part in unit.parts:
                arrays = {name: self._file.read(path) for name, path in found[part.place].items()}
                try:
                    part.layer.load_own_variables(arrays)
                except (ValueError, KeyError) as error:
                    raise InvalidParameter(f"the weights of layer {unit.name!r} do not fit: {error}") from None

        plan.take(unit.name, wanted, stored, assign)

    def _places(self) -> dict[str, str]:
        """Return the place of each layer of the file by its name, with the names of enclosing models."""
        names: dict[str, str] = {}
        found = (_LAYER.match(path) for path in self._file.datasets if not _NO_WEIGHTS.search(path))
        for place in dict.fromkeys(match[0] for match in found if match):
            parts = [self._name("/".join(place.split("/")[: end + 2])) for end in range(0, place.count("/"), 2)]
            if None in parts:
                raise Unsupported(
                    "the file does not have the names of its layers: an older version of Keras wrote it",
                    hint="Import it by order, without by_name.",
                )
            names["/".join(map(str, parts))] = place
        return names

    def _name(self, place: str) -> str | None:
        group = f"{place}/vars"
        texts = self._file.texts(group, "name", is_list=False) if group in self._file.groups else None
        return texts[0] if texts else None

    def _unused(self, used: set[str]) -> list[str]:
        """Return the places of layers whose weights were not used."""
        places = dict[str, None]()
        for path in self._file.datasets:
            if path in used or _NO_WEIGHTS.search(path) or not path.startswith(("layers/", "_layer_checkpoint_")):
                continue
            place = path.partition("/vars/")[0]
            found = _LAYER.match(place)
            named = found and self._name(found[0])
            places[f"{place} ({named})" if named else place] = None
        return list(places)


class LegacyWeights:
    """The weights of a legacy HDF5 file: Keras 2's ``save_weights('x.h5')``, and whole models in ``.h5``."""

    def __init__(self, file: WeightsFile, root: str, names: Sequence[str]):
        self._file = file
        self._layers = {name: self._paths(f"{root}/{name}" if root else name) for name in names}
        top = f"{root}/top_level_model_weights" if root else "top_level_model_weights"
        if top in file.groups and any(path.startswith(f"{top}/") for path in file.datasets):
            raise Unsupported("the file has weights of the model itself, outside of its layers")

    def load(self, model: keras.Model, by_name: bool, skip_mismatch: bool) -> Match:
        """See `WeightsSource.load`."""
        plan = _Plan(by_name, skip_mismatch)
        layers = [layer for layer in model.layers if layer.weights]
        stored = {name: paths for name, paths in self._layers.items() if paths}
        if not by_name:
            self._check_count(layers, stored, skip_mismatch)
        names = [layer.name for layer in layers] if by_name else list(stored)
        used = set()
        for layer, name in zip_longest(layers, names[: len(layers)]):
            if name not in stored:
                plan.miss(layer.name, "")
                continue
            used.add(name)
            self._take(plan, layer, stored[name])
        plan.leave([name for name in stored if name not in used])
        return plan.execute(model, list(stored))

    def _paths(self, group: str) -> list[str]:
        names = _listed(self._file, group, "weight_names") if group in self._file.groups else None
        paths = [f"{group}/{name}" for name in names or ()]
        if names is None or any(path not in self._file.datasets for path in paths):
            raise UnreadableText(f"the HDF5 file is damaged: layer {group[:100]!r} lacks weights that it names")
        return paths

    def _check_count(self, layers: Sequence[Any], stored: Mapping[str, object], skip_mismatch: bool) -> None:
        if len(layers) != len(stored) and not skip_mismatch:
            raise InvalidParameter(
                f"the file has weights of {len(stored)} layers ({_shown(list(stored))}), and the model has"
                f" {len(layers)} layers with weights ({_shown([layer.name for layer in layers])})",
                hint=_BY_NAME,
            )

    def _take(self, plan: _Plan, layer: keras.layers.Layer, paths: Sequence[str]) -> None:
        # the order of Keras 2, see keras.src.legacy.saving.legacy_h5_format
        variables = [*layer.trainable_weights, *layer.non_trainable_weights]

        def assign() -> None:
            for variable, path in zip(variables, paths, strict=True):
                variable.assign(self._file.read(path))
            _finish(layer)

        plan.take(layer.name, _shapes(variables), [self._file.shape(path) for path in paths], assign)


class NamedTensors:
    """The weights of a safetensors file: each has the path of its variable in Keras, as an export of ours writes it."""

    def __init__(self, data: Data):
        self._data, self._header = memoryview(data), read_header(data)

    def load(self, model: keras.Model, by_name: bool, skip_mismatch: bool) -> Match:
        """See `WeightsSource.load`."""
        plan, tensors, units = _Plan(by_name, skip_mismatch), self._header.tensors, units_of(model)
        keys = self._keys(model, units, by_name)
        for unit in units:
            found = [key for weight in unit.layer.weights if (key := keys.get(id(weight))) is not None]
            if found:
                self._take(plan, unit, found)
            else:
                plan.miss(unit.name, "")
        used = set(keys.values())
        plan.leave([name for name in tensors if name not in used])
        return plan.execute(model, list(tensors))

    def _keys(self, model: keras.Model, units: Sequence[Unit], by_name: bool) -> dict[int, str]:
        """Return the name in the file of each weight of the model, by the weight's identity."""
        order = self._header.order
        if not by_name and order is not None:
            return {id(weight): key for weight, key in zip(model.weights, order, strict=False)}
        ends: dict[str, list[str]] = {}
        for name in self._header.tensors:
            parts = name.split("/")
            for start in range(max(0, len(parts) - _MOST_PARTS), len(parts)):
                ends.setdefault("/".join(parts[start:]), []).append(name)
        keys: dict[int, str] = {}
        claimed: set[str] = set()
        for unit in sorted(units, key=lambda one: -one.name.count("/")):  # the longest names fit the fewest tensors
            for weight in unit.layer.weights:
                for name in _paths_of(model, unit, weight):
                    found = [one for one in ends.get(name, ()) if one not in claimed]
                    if len(found) == 1:
                        keys[id(weight)] = found[0]
                        claimed.add(found[0])
                        break
        if not by_name and not len(keys) == len(set(keys.values())) == len(self._header.tensors) == len(model.weights):
            names = [_paths_of(model, unit, weight)[1] for unit in units for weight in unit.layer.weights]
            raise InvalidParameter(
                "the safetensors file does not say the order of its weights, and has other names than the model",
                hint=f"{_BY_NAME} The model has {_shown(names)}.",
            )
        return keys

    def _take(self, plan: _Plan, unit: Unit, keys: Sequence[str]) -> None:
        variables = unit.layer.weights
        tensors = [self._header.tensors[key] for key in keys]

        def assign() -> None:
            for variable, tensor in zip(variables, tensors, strict=True):
                variable.assign(self._read(tensor))
            _finish(unit.layer)

        plan.take(unit.name, _shapes(variables), [tensor.shape for tensor in tensors], assign)

    def _read(self, tensor: FileTensor) -> Array:
        dtype: Any = tensor.dtype
        if tensor.dtype == "bfloat16":
            import ml_dtypes

            dtype = ml_dtypes.bfloat16
        return np.frombuffer(self._data[tensor.start : tensor.end], dtype).reshape(tensor.shape)


def _paths_of(model: keras.Model, unit: Unit, weight: Any) -> list[str]:
    """Return names of a weight: with the names of all enclosing models first, then with fewer of them.

    Keras puts the names of enclosing models before some weights, depending on how the model was built.
    """
    rest = str(weight.path).rpartition(f"{unit.layer.name}/")[2]
    models = f"{model.name}/{unit.name}".split("/")
    return [*("/".join([*models[start:], rest]) for start in range(len(models))), str(weight.path)]


def _listed(file: WeightsFile, group: str, name: str) -> list[str] | None:
    """Return a list of names, which Keras writes in several attributes if it is long."""
    names = file.texts(group, name)
    if names is not None:
        return names
    parts = list(_parts_of_list(file, group, name))
    return [one for part in parts for one in part] if parts else None


def _parts_of_list(file: WeightsFile, group: str, name: str) -> Iterator[list[str]]:
    number = 0
    while (part := file.texts(group, f"{name}{number}")) is not None:
        yield part
        number += 1


def _finish(layer: keras.layers.Layer) -> None:
    """Let a layer use its new weights, as Keras' own loading does: Normalization keeps statistics beside them."""
    finalize = getattr(layer, "finalize_state", None)
    if callable(finalize):
        finalize()


def _number(item: tuple[str, object]) -> tuple[int, str]:
    return (int(item[0]), "") if item[0].isdecimal() else (-1, item[0])


def _shapes(variables: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(variable.shape) for variable in variables]


def _mismatch(name: str, wanted: Shapes, found: Shapes) -> MopError:
    return InvalidParameter(
        f"layer {name!r} has weights of the shapes {_text(wanted)}, and the file has {_text(found)}",
        hint="To leave out layers that do not fit, pass skip_mismatch => true.",
    )


def _text(shapes: Shapes) -> str:
    return " and ".join(str(list(shape)) for shape in shapes) or "none"


def _shown(names: Sequence[str]) -> str:
    more = f", ... ({len(names)} in all)" if len(names) > _N_SHOWN else ""
    return ", ".join(name[:100] for name in names[:_N_SHOWN]) + more
