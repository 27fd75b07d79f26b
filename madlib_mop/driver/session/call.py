"""One call of an SQL function, as a command of the driver receives it."""

from dataclasses import dataclass, field
from typing import Any

from madlib_mop.calls import find_function, read_arguments
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.info import SessionInfo
from madlib_mop.errors import InsufficientPrivilege


@dataclass(frozen=True)
class Call:
    """The input of a command.

    Attributes
    ----------
    function : str
        SQL name of the function, for messages.
    arguments : dict
        Every argument of the function by name, checked by its specification (`madlib_mop.calls`); JSON types, and
        ``bytes`` for bytea.
    session : CallerSession
        Runs SQL as the caller, in the caller's transaction.
    continue_run : int or None
        Set if a driver of this call was killed: the run to continue.
    """

    function: str
    arguments: dict[str, Any]
    session: CallerSession
    continue_run: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, function: str, given: Any, session: CallerSession, continue_run: int | None = None) -> "Call":
        """Return a call with its arguments checked, and defaults for missing ones.

        Raises
        ------
        Unsupported, InvalidParameter
            If there is no such function, or an argument is wrong.
        """
        return cls(function, read_arguments(find_function(function), given), session, continue_run)

    @property
    def info(self) -> SessionInfo:
        """The caller."""
        return self.session.info

    def need_superuser(self, why: str, hint: str) -> None:
        """Raise InsufficientPrivilege unless the role that calls is a superuser."""
        (row,) = self.session.execute("SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user")
        if not row["rolsuper"]:
            raise InsufficientPrivilege(f"{why}. Received a call by role {self.info.role}", hint=hint)
