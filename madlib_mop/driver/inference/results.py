"""The output tables of predict and score: with the types of the columns that they copy, filled by INSERTs."""

from collections.abc import Sequence

import numpy as np

from madlib_mop.catalog.names import Identifier, Relation, Slot, statement
from madlib_mop.driver.data.copied import CopiedColumn, array_literal, quoted
from madlib_mop.driver.data.engine import distribution
from madlib_mop.driver.inference.wanted import ScoreChoice
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.relations import Column
from madlib_mop.errors import InvalidParameter

_COLUMNS = ("class_name", "class_value", "prob", "rank")
_ROWS_PER_INSERT = 100_000
_HAS_HASH = """
SELECT $1 = 'varchar' OR EXISTS (
    SELECT FROM pg_catalog.pg_opclass o
    JOIN pg_catalog.pg_am a ON a.oid = o.opcmethod AND a.amname = 'hash'
    JOIN pg_catalog.pg_type t ON t.oid = o.opcintype
    WHERE o.opcdefault AND t.typname = $1 AND t.typnamespace = 'pg_catalog'::pg_catalog.regnamespace
) AS yes
"""


class ResultTable:
    """The output table of predict.

    Rows are inserted as array literals, which the server parses at a third of the cost of a list that PL/Python
    converts element by element (`benchmarks/predict.py` measures the whole).

    Parameters
    ----------
    session : CallerSession
    output : Relation
    table : Relation
        The test table.
    id_column : Column
    has_rank : bool

    Raises
    ------
    InvalidParameter
        If the output table has another column with the id column's name.
    """

    def __init__(
        self, session: CallerSession, output: Relation, table: Relation, id_column: Column, has_rank: bool
    ):
        name = id_column.name
        if name in _COLUMNS:
            raise InvalidParameter(
                f"id_col: the output table already has a column {name!r}. Received: {name!r}",
                hint="Rename the id column in a view.",
            )
        self.n_rows = 0
        self._session = session
        self._has_rank = has_rank
        self._output = output
        self._table = table
        self._id = CopiedColumn(id_column)
        self._insert = statement(
            f"INSERT INTO {{o}} SELECT {self._id.unnested('$1', 't')}, $2,"
            " pg_catalog.unnest($3::pg_catalog.text[]), pg_catalog.unnest($4::pg_catalog.float8[])"
            + (", pg_catalog.unnest($5::pg_catalog.int4[])" if has_rank else ""),
            o=output,
            t=id_column.sql_type,
        )

    def create(self) -> None:
        """Make the table; its id column has the type and collation of the test table's."""
        rank = ", NULL::pg_catalog.int4 AS rank" if self._has_rank else ""
        self._session.execute(
            statement(
                "CREATE TABLE {o} USING heap AS SELECT s.{id}, NULL::pg_catalog.text AS class_name,"
                f" NULL::pg_catalog.text AS class_value, NULL::pg_catalog.float8 AS prob{rank} FROM {{t}} s"
                " WITH NO DATA",
                o=self._output,
                id=Identifier(self._id.column.name),
                t=self._table,
            )
            + distribution(self._session, *_hashed(self._session, self._id.column))
        )

    def add(self, class_name: str, ids: np.ndarray, labels: np.ndarray, choice: ScoreChoice) -> None:
        """Write the chosen scores of one output for one batch.

        Parameters
        ----------
        class_name : str
        ids, labels : numpy.ndarray
            Elements of an array literal (`quoted`), for each row of the batch, and for each class and then `NO_CLASS`.
        choice : ScoreChoice
        """
        for start in range(0, len(choice.rows), _ROWS_PER_INSERT):
            part = slice(start, start + _ROWS_PER_INSERT)
            part_ids, id_type = self._id.bound(ids[choice.rows[part]].tolist())
            params = [
                part_ids,
                class_name,
                array_literal(labels[choice.units[part]].tolist()),
                array_literal(map(repr, choice.scores[part].tolist())),
            ]
            if self._has_rank:
                params.append(array_literal(map(str, choice.ranks[part].tolist())))
            self._session.execute(self._insert, params, [id_type])
        self.n_rows += len(choice.rows)


class ScoredTable:
    """The output table of score: a row for each row of a table.

    Parameters
    ----------
    session : CallerSession
    output : Relation
    table : Relation
        The table of the rows.
    kept : sequence of CopiedColumn
        Its columns that are copied; at least one.
    predicted : sequence of (str, str)
        Names and SQL types of the columns of predictions.
    """

    def __init__(
        self,
        session: CallerSession,
        output: Relation,
        table: Relation,
        kept: Sequence[CopiedColumn],
        predicted: Sequence[tuple[str, str]],
    ):
        self._session = session
        self._output = output
        self._table = table
        self._kept = kept
        self._predicted = predicted

    def create(self) -> None:
        """Make the table; the columns that are copied keep their types and collations."""
        copied = [f"s.{{k{i}}}" for i in range(len(self._kept))]
        values = [f"NULL::pg_catalog.{type_sql} AS {{p{i}}}" for i, (_, type_sql) in enumerate(self._predicted)]
        slots: dict[str, Slot] = {f"k{i}": Identifier(one.column.name) for i, one in enumerate(self._kept)}
        slots |= {f"p{i}": Identifier(name) for i, (name, _) in enumerate(self._predicted)}
        query = f"CREATE TABLE {{o}} USING heap AS SELECT {', '.join([*copied, *values])} FROM {{t}} s WITH NO DATA"
        key = _hashed(self._session, self._kept[0].column)
        made = statement(query, o=self._output, t=self._table, **slots)
        self._session.execute(made + distribution(self._session, *key))

    def add(self, kept: Sequence[Sequence[str | None]], predicted: Sequence[Sequence[str]]) -> None:
        """Write a batch of rows.

        Parameters
        ----------
        kept : sequence of sequence of (str or None)
            The values of each column that is copied, as text.
        predicted : sequence of sequence of str
            The values of each other column, as elements of an array literal.
        """
        bound = [one.bound(quoted(texts).tolist()) for one, texts in zip(self._kept, kept, strict=True)]
        values = [one.unnested(f"${i}", f"t{i}") for i, one in enumerate(self._kept, 1)]
        types = (type_sql for _, type_sql in self._predicted)
        values += [f"pg_catalog.unnest(${i}::pg_catalog.{one}[])" for i, one in enumerate(types, len(bound) + 1)]
        slots: dict[str, Slot] = {f"t{i}": one.column.sql_type for i, one in enumerate(self._kept, 1)}
        insert = statement(f"INSERT INTO {{o}} SELECT {', '.join(values)}", o=self._output, **slots)
        params = [value for value, _ in bound] + [array_literal(elements) for elements in predicted]
        self._session.execute(insert, params, [sql_type for _, sql_type in bound])


def _hashed(session: CallerSession, column: Column) -> Sequence[str]:
    """Return the columns to distribute rows by: this one, if its type has a hash function; else none."""
    (row,) = session.execute(_HAS_HASH, [column.type_name])
    return [column.name] if row["yes"] else []
