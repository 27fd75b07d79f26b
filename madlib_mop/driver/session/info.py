"""The identity of the caller; every kind of session has it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SessionInfo:
    """The identity of the caller, from the server's own answers in the caller's backend.

    ``is_superuser`` says whether the role is a superuser or can become one.
    """

    role: str
    login: str
    database: str
    pid: int
    port: str
    sockets: str
    search_path: str | None = None
    is_superuser: bool = False
    role_oid: int = 0
    forkserver: str | None = None
