"""The rows of ``defences.py``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defence:
    """A defence and its tests.

    Attributes
    ----------
    name : str
        Its name, which its marker in the sources has (``markers.py``).
    guarantee : str
        What it guarantees, in one sentence.
    tests : tuple of str
        Pytest's names of tests, of which at least one must fail without the defence.
    as_root : bool
        Whether only root can run these tests.
    """

    name: str
    guarantee: str
    tests: tuple[str, ...]
    as_root: bool = False
