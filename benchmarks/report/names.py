"""The ways' display names, their order and style in plots, and the figures published for them."""

from dataclasses import dataclass

HOPPER, FUSED, PLAIN = "hopper", "hopper_fused", "plain"


@dataclass(frozen=True)
class Look:
    """Name and style of a way.

    Attributes
    ----------
    name : str
    light, dark : str
        Its colour on a light and on a dark page; a test checks that the colour-blind can distinguish them. Dashes and
        markers differ as well.
    marker : str
        A shape of Vega.
    dashes : tuple of float
        Pixels on and off; empty for a solid line.
    """

    name: str
    light: str
    dark: str
    marker: str
    dashes: tuple[float, ...] = ()


@dataclass(frozen=True)
class Published:
    """Published results: ImageNet, 16 configurations of VGG16 and ResNet50, 10 epochs, 8 nodes with one P100 each."""

    hours: float
    storage_gb: int
    note: str


LOOKS = {
    HOPPER: Look("hopper", "#c93c00", "#ff7a33", "circle"),
    "hopper_fused": Look("hopper, fused", "#e26848", "#cf4107", "triangle-right", (1, 1)),
    PLAIN: Look("plain Keras", "#33383f", "#dfe3e8", "square", (4, 2)),
    "celery_tasks": Look("Celery tasks", "#0a4fdc", "#4c7ffb", "triangle-up"),
    "ray_tune": Look("Ray Tune", "#1395d3", "#9ad0f9", "triangle-down", (1, 1.5)),
    "all_reduce": Look("all-reduce", "#276e4c", "#22ee88", "diamond"),
    "horovod_ring": Look("Horovod ring", "#5b12a8", "#a59fff", "cross", (1, 1.5)),
    "parameter_server": Look("parameter server", "#da6b92", "#c874a8", "triangle-left", (5, 1.5, 1, 1.5)),
    "averaging": Look("model averaging", "#5e3c00", "#ffc615", "arrow", (9, 2)),
}
PUBLISHED = {
    HOPPER: Published(17.7, 250, "accuracy of sequential SGD"),
    "celery_tasks": Published(17.2, 2000, "a full copy of the data a worker"),
    "all_reduce": Published(54.2, 250, "2 million GiB over the network in a later study"),
    "parameter_server": Published(190.0, 250, "asynchronous; not reproducible"),
    "averaging": Published(19.70, 250, "bulk synchronous; converges poorly"),
}


def look(way: str) -> Look:
    """Return the style of a way; an unknown way is grey."""
    return LOOKS.get(way, Look(way.replace("_", " "), "#6b7280", "#9ca3af", "stroke"))


def in_order(ways) -> list[str]:
    """Sort ways: known ones first, in their defined order."""
    known = list(LOOKS)
    return sorted(ways, key=lambda way: (known.index(way) if way in known else len(known), way))


def published_ratio(way: str) -> float | None:
    """Return the ratio of the way's published hours to those of the hopper."""
    return PUBLISHED[way].hours / PUBLISHED[HOPPER].hours if way in PUBLISHED else None
