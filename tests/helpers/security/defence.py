"""What a row of ``defences.py`` is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defence:
    """A defence and its tests.

    Attributes
    ----------
    name : str
        One sentence: what holds because of it.
    file : str
        Path in the repository.
    text : str
        What is in the file exactly once.
    instead : str
        What to write in its place.
    tests : tuple of str
        Pytest's names of tests; at least one must fail without the defence.
    as_root : bool
        Whether only root can run these tests.
    """

    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    as_root: bool = False
