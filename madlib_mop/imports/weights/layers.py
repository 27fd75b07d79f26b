"""The layers of a model as Keras saves them: where each layer's variables are in a file; called by ``matching.py``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras.src.saving import saving_lib
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.utils.naming import to_snake_case


@dataclass(frozen=True)
class LayerPart:
    """A layer with variables of its own, inside a unit: such as the cell of an LSTM.

    Attributes
    ----------
    layer : keras.layers.Layer
    place : str
        Relative to the unit, such as ``cell``; "" for the unit itself.
    """

    layer: keras.layers.Layer
    place: str

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays that Keras saves for it, by the names in the file."""
        saved: dict[str, Any] = {}
        self.layer.save_own_variables(saved)
        return {name: tuple(value.shape) for name, value in saved.items()}


@dataclass(frozen=True)
class Unit:
    """One layer of a model or of a model inside it, which is no model itself.

    Attributes
    ----------
    name : str
        With the names of enclosing models, such as ``base/conv1``.
    place : str
        Where Keras saves it, such as ``layers/functional/layers/conv2d``.
    layer : keras.layers.Layer
    parts : tuple of LayerPart
    """

    name: str
    place: str
    layer: keras.layers.Layer
    parts: tuple[LayerPart, ...]


def units_of(model: keras.Model) -> list[Unit]:
    """Return the layers that have variables, in the order of the model; a shared layer once."""
    return [unit for unit in _units(model, "", "", set()) if unit.parts]


def weight_names(weights: Sequence[Any]) -> list[str]:
    """Return a name for each weight: its path in Keras, with a number if others have the same one before it."""
    names: list[str] = []
    known: set[str] = set()
    for weight in weights:
        name, number = str(weight.path), 1
        while name in known:
            number += 1
            name = f"{weight.path}_{number}"
        names.append(name)
        known.add(name)
    return names


def _units(model: keras.Model, prefix: str, place: str, visited: set[int]) -> Iterator[Unit]:
    used: dict[str, int] = {}
    for layer in model.layers:
        name = saving_lib._get_unique_name(to_snake_case(type(layer).__name__), used)
        own = f"{place}layers/{name}"
        if id(layer) in visited:
            continue
        if isinstance(layer, keras.Model):
            visited.add(id(layer))
            yield from _units(layer, f"{prefix}{layer.name}/", f"{own}/", visited)
        else:
            yield Unit(f"{prefix}{layer.name}", own, layer, tuple(_parts(layer, "", visited)))


def _parts(layer: keras.layers.Layer, place: str, visited: set[int]) -> Iterator[LayerPart]:
    """Yield what Keras saves of a layer, in its order: `saving_lib._save_state` visits an object once."""
    if id(layer) in visited:
        return
    visited.add(id(layer))
    if layer._trainable_variables or layer._non_trainable_variables:
        yield LayerPart(layer, place)
    for attribute, child in saving_lib._walk_saveable(layer):
        inner = f"{place}/{attribute}" if place else attribute
        if isinstance(child, keras.layers.Layer):
            yield from _parts(child, inner, visited)
        elif isinstance(child, list | dict | tuple):
            yield from _parts_of(child, inner, visited, set())


def _parts_of(container: Any, place: str, visited: set[int], containers: set[int]) -> Iterator[LayerPart]:
    if id(container) in containers:
        return
    containers.add(id(container))
    used: dict[str, int] = {}
    for child in container.values() if isinstance(container, dict) else container:
        if isinstance(child, KerasSaveable):
            name = saving_lib._get_unique_name(to_snake_case(type(child).__name__), used)
            if isinstance(child, keras.layers.Layer):
                yield from _parts(child, f"{place}/{name}", visited)
        elif isinstance(child, list | dict | tuple):
            name = saving_lib._get_unique_name("container", used)
            yield from _parts_of(child, f"{place}/{name}", visited, containers)
