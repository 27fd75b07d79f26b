"""What the parts of `Record` that are mixed into it have of its session."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from psycopg2.extensions import connection
from sqlalchemy import Connection, Engine, Executable

from madlib_mop.catalog.names import Relation


class RecordSession(ABC):
    """The catalog session as `Record` has it: see there."""

    raw: connection
    _engine: Engine

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """Make several statements one transaction."""

    @abstractmethod
    def execute(self, template: str, params: Sequence[Any] = (), **names: Relation) -> list[tuple[Any, ...]]:
        """Run a statement of the driver's own about its tables."""

    @abstractmethod
    def set_run(self, run_id: int, **values: Any) -> None:
        """Change columns of a run."""

    @abstractmethod
    def _do(self, query: Executable) -> None: ...

    @abstractmethod
    def _rows(self, query: Executable) -> Sequence[Mapping[str, Any]]: ...

    @abstractmethod
    def _scalar(self, query: Executable) -> Any: ...
