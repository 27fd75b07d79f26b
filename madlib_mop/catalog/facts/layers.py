"""An architecture in words, from its JSON, which is read as data: nothing is built. Called by `models` and exports."""

from typing import Any

_SIZES = ("units", "filters", "rate", "output_dim", "num_heads")
_SILENT = ("InputLayer",)
_MAX_LAYERS = 12


def layers_in_words(architecture: Any) -> str:
    """Return the layers of an architecture in order, such as ``Flatten → Dense 64 relu → Dense 10 softmax``."""
    words = [_word(layer) for layer in _layers(architecture)]
    words = [word for word in words if word]
    if len(words) > _MAX_LAYERS:
        words = [*words[: _MAX_LAYERS - 2], f"… {len(words) - _MAX_LAYERS + 1} more layers …", words[-1]]
    return " → ".join(words) or "unknown layers"


def _layers(architecture: Any) -> list[Any]:
    config = architecture.get("config") if isinstance(architecture, dict) else None
    layers = config.get("layers") if isinstance(config, dict) else None
    return layers if isinstance(layers, list) else []


def _word(layer: Any) -> str:
    if not isinstance(layer, dict) or not isinstance(layer.get("class_name"), str):
        return ""
    name, config = layer["class_name"], layer.get("config")
    if name in _SILENT:
        return ""
    if not isinstance(config, dict):
        return str(name)
    parts = [name]
    parts += [f"{config[key]:g}" for key in _SIZES if isinstance(config.get(key), int | float)]
    kernel = config.get("kernel_size")
    if isinstance(kernel, list) and all(isinstance(side, int) for side in kernel):
        parts.append("×".join(map(str, kernel)))
    if isinstance(config.get("activation"), str) and config["activation"] != "linear":
        parts.append(config["activation"])
    l2 = config.get("kernel_regularizer")
    strength = l2.get("config", {}).get("l2") if isinstance(l2, dict) and isinstance(l2.get("config"), dict) else None
    if isinstance(strength, int | float):
        parts.append(f"L2 {strength:g}")
    return " ".join(parts)
