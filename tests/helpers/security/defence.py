"""The rows of ``defences.py``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Defence:
    """A defence and its tests.

    Attributes
    ----------
    name : str
        The guarantee that the defence provides, in one sentence.
    file : str
        Path in the repository.
    text : str
        A text that the file contains exactly once.
    instead : str
        The text that replaces it.
    tests : tuple of str
        Pytest's names of tests, of which at least one must fail without the defence.
    as_root : bool
        Whether only root can run these tests.
    """

    name: str
    file: str
    text: str
    instead: str
    tests: tuple[str, ...]
    as_root: bool = False
