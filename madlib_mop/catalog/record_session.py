"""The session interface that `Record` provides to its mixins."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from psycopg2.extensions import connection
from sqlalchemy import Connection, Engine, Executable

from madlib_mop.catalog.names import Relation

#: Parameter values of a statement: by position or by name.
Params = Sequence[Any] | Mapping[str, Any]
#: A row that a statement of the driver returns.
SqlRow = tuple[Any, ...]


class RecordSession(ABC):
    """The catalog session of `Record`: see there."""

    raw: connection
    _engine: Engine

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Connection]:
        """Run several statements in one transaction."""

    @abstractmethod
    def execute(self, template: str, params: Params = (), **names: Relation) -> list[SqlRow]:
        """Run a statement on the driver's own tables."""

    @abstractmethod
    def set_run(self, run_id: int, **values: Any) -> None:
        """Change columns of a run."""

    @abstractmethod
    def _do(self, query: Executable) -> None: ...

    @abstractmethod
    def _rows(self, query: Executable) -> list[dict[str, Any]]: ...

    @abstractmethod
    def _scalar(self, query: Executable) -> Any: ...
