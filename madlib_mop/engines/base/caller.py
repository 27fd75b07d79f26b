"""The interface of the caller's session that engines use; `madlib_mop.driver.session.caller` has it."""

from collections.abc import Sequence
from typing import Any, Protocol


class EngineCaller(Protocol):
    """The interface of the caller's session that engines use (`madlib_mop.driver.session.caller.CallerSession`)."""

    info: Any

    def execute(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Run one statement with the caller's rights, in the caller's transaction."""

    def post(self, statement: str, params: Sequence[Any] = (), types: Sequence[str] = ()) -> None:
        """Run one statement as `execute` does, without waiting for its end; the next request raises its error."""

    def flush(self) -> None:
        """Wait for the end of what was posted, and raise its error."""

    def caller_setting(self, name: str) -> str | None:
        """Return a setting of the caller's session."""
