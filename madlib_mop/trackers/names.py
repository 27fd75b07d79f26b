"""Names of metrics and texts of the record in the forms that trackers take; called by all three trackers.

Names and reasons come from other roles: they are data, whatever characters they have.
"""

import hashlib
import re

from madlib_mop.catalog.facts.curves import MetricPoint
from madlib_mop.catalog.live.words import clean

_NO_KEY = re.compile(r"[^A-Za-z0-9_. -]")
_MAX_KEY = 200


def history_name(point: MetricPoint) -> str:
    """Return the name of a metric as in Keras' history: ``loss``, ``val_loss``; of a sample ``sample_loss``."""
    return f"{'sample_' if point.is_sample else ''}{'val_' if point.data_set == 'validation' else ''}{point.name}"


def tag_of(point: MetricPoint) -> str:
    """Return the tag of a metric as Keras' callback TensorBoard names it; of a sample, ``visit_`` and its name."""
    # defence: tags-of-tensorboard = f"{'visit' if point.is_sample else 'epoch'}_{point.name}"
    return f"{'visit' if point.is_sample else 'epoch'}_{clean(point.name)}"


def key_of(name: str) -> str:
    """Return a name as a key of MLflow: letters, digits and ``_. -`` only, no path.

    A name with other characters, or a longer one, gets a part of its SHA-256, so that two names have two keys.
    """
    # defence: names-in-mlflow = name[:_MAX_KEY].strip(" .")
    plain = _NO_KEY.sub("_", name).replace("..", "__")[:_MAX_KEY].strip(" .")
    if plain and plain == name:
        return name
    return f"{plain or '_'}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def text_of(value: object, limit: int) -> str:
    """Return a value as text of at most ``limit`` characters, with control characters as escapes."""
    text = clean(str(value))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
