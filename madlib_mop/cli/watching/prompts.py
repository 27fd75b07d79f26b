"""What a key asks before a command is issued: a value, and y or n; called by `terminal`."""

from dataclasses import dataclass, field, replace

from madlib_mop.catalog.facts.models import ModelLine
from madlib_mop.catalog.facts.now import RunStatus

#: Keys of commands with the SQL function of each, for the last line of the screen.
KEYS = (("s", "stop"), ("r", "resume"), ("c", "clone"), ("e", "extend"), ("p", "pause"), ("q", "quit"))


@dataclass(frozen=True)
class Prompt:
    """A question on the last line: first for the values that are asked for, then for y or n.

    Attributes
    ----------
    command : str
        The function of schema madlib_mop.
    given : dict of str to str
        Its arguments so far.
    what : str
        What it does, for the question.
    asks : tuple of (str, str)
        Arguments that are still to be typed: name and question.
    typed : str
        What was typed so far.
    """

    command: str
    given: dict[str, str]
    what: str
    asks: tuple[tuple[str, str], ...] = ()
    typed: str = field(default="")

    @property
    def question(self) -> str:
        """The text of the last line."""
        if self.asks:
            return f"{self.asks[0][1]}: {self.typed}"
        said = ", ".join(f"{name} {value}" for name, value in self.given.items() if name not in ("run_id", "mst_key"))
        return f"{self.what}{f' with {said}' if said else ''}? y/n"

    def press(self, key: str) -> "Prompt | None":
        """Return the prompt after a key other than y at the end; None: the command is not issued."""
        if key == "escape" or not self.asks:
            return None
        if key == "backspace":
            return replace(self, typed=self.typed[:-1])
        if key == "enter":
            name = self.asks[0][0]
            return replace(self, given={**self.given, name: self.typed}, asks=self.asks[1:], typed="")
        return replace(self, typed=self.typed + key) if len(key) == 1 else self


def prompt_for(key: str, status: RunStatus, model: ModelLine | None) -> Prompt | None:
    """Return what a key asks; None if it is the key of no command, or there is no model to apply it to."""
    run = {"run_id": str(status.run_id)}
    if key == "p":
        if status.paused_by is not None:
            return Prompt("unpause", run, f"let run {status.run_id} continue")
        return Prompt("pause", run, f"pause run {status.run_id}")
    if model is None:
        return None
    given, name = {**run, "mst_key": str(model.mst_key)}, f"model {model.mst_key}"
    if key == "s":
        return Prompt("stop_model", given, f"stop {name}")
    if key == "r":
        return Prompt("resume_model", given, f"resume {name}")
    if key == "c":
        asked = (("compile_params", "compile_params of the clone (empty: those of the model)"),)
        return Prompt("clone_model", given, f"clone {name}", asked)
    if key == "e":
        return Prompt("extend", given, f"extend {name}", (("num_iterations", "number of further iterations"),))
    return None
