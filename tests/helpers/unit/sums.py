"""The sums in a trainer's answer to an evaluation, for tests of their use."""

import base64
from array import array


def sums_of(n_rows: int, means: dict[str, float], **others: list[float]) -> dict:
    """Return ``sums`` of an answer, with metrics that are means over rows and others that are not."""
    layout = [[name, 2, True] for name in means] + [[name, len(sums), False] for name, sums in others.items()]
    sums = array("d", [item for value in means.values() for item in (n_rows * value, n_rows)])
    for more in others.values():
        sums.extend(more)
    return {"layout": layout, "data": base64.b64encode(sums).decode()}


def values_of(sums: dict) -> list[float]:
    """Return the sums."""
    return array("d", base64.b64decode(sums["data"])).tolist()
