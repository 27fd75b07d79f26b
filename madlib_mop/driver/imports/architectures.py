"""The commands import_model and import_weights: a model of a file becomes a row of a table of architectures, and
weights of a file become the start weights of a row."""

from madlib_mop.catalog.names import Identifier, Relation, statement
from madlib_mop.driver.commands.architectures import wait_for_others
from madlib_mop.driver.data.library_tables import add_architecture, check_architecture_table, create_architectures
from madlib_mop.driver.imports.reading import WeightsTarget, read_file, shown
from madlib_mop.driver.inference.byom import find_architecture
from madlib_mop.driver.session.call import Call
from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.driver.session.messages import no_architecture
from madlib_mop.errors import InvalidParameter, MopError, NotReady
from madlib_mop.models.architecture import check_architecture
from madlib_mop.models.stored import check_statistics

_WHAT = "model_arch_table"
_KEY = Identifier("model_id")


def import_model(call: Call) -> int:
    """Add the model of a ``.keras`` file to a table of architectures, which is created if there is none.

    Its weights become the start weights. Returns its ``model_id``.

    Raises
    ------
    MopError
        If the file is not one of a Keras model of Keras' own layers, or the table is not one of architectures.
    """
    session, given = call.session, call.arguments
    table = session.existing(given[_WHAT], _WHAT)
    if table is None:
        session.output(given[_WHAT], suffixes=("",), what=_WHAT)
    else:
        check_architecture_table(session, table, given[_WHAT], _WHAT)
    found = read_file(session, given["file"])
    table = table or create_architectures(session, given[_WHAT], _WHAT)
    wait_for_others(session, table)
    return add_architecture(session, table, found.model.text, found.weights, given["name"], given["description"])


def import_weights(call: Call) -> int:
    """Give an architecture of a table the weights of a file; return the number of layers that got weights.

    Raises
    ------
    MopError
        If there is no such row, or the file is damaged, has something that is refused, or does not fit.
    """
    session, given = call.session, call.arguments
    place = find_architecture(session, given[_WHAT], given["model_id"])
    label = f"model_id {place.key} of {place.relation}"
    text, weights = _row(session, place.relation, given["model_id"], label)
    try:
        arch = check_architecture(text)
        check_statistics(arch)
    except MopError as error:
        error.message = f"{_WHAT}: {label}: {error.message}"
        raise
    target = WeightsTarget(arch, weights, bool(given["by_name"]), bool(given["skip_mismatch"]))
    found = read_file(session, given["file"], target)
    session.lock_to_write(place.relation, _WHAT)
    rows = session.execute(
        statement(
            "UPDATE {t} SET model_weights = $1 WHERE {k} = $2 AND model_arch::pg_catalog.text = $3"
            " RETURNING {k} AS model_id",
            t=place.relation,
            k=_KEY,
        ),
        [found.weights, given["model_id"], text],
        ["bytea", "integer", "text"],
    )
    if len(rows) != 1:
        raise NotReady(f"{label} was changed while the file was being read", hint="Call again.")
    lines = [f"weights for {shown(found.taken)}"]
    if found.kept:
        lines.append(f"{'unchanged' if weights is not None else 'newly drawn'}: {shown(found.kept)}")
    if found.unused:
        lines.append(f"only in the file: {shown(found.unused)}")
    session.notice(f"{call.function}: {label}: {'; '.join(lines)}")
    return len(found.taken)


def _row(session: CallerSession, relation: Relation, model_id: int, label: str) -> tuple[str, bytes | None]:
    """Return the architecture and the weights of a row."""
    (row,) = session.execute(
        statement(
            "SELECT model_arch::pg_catalog.text AS arch, model_weights AS weights FROM {t} WHERE {k} = $1",
            t=relation,
            k=_KEY,
        ),
        [model_id],
        ["integer"],
    )
    if row["arch"] is None:
        raise no_architecture(_WHAT, label)
    weights = row["weights"]
    if not isinstance(weights, bytes | None):
        raise InvalidParameter(f"{_WHAT}: column 'model_weights' of {relation} must be of type bytea")
    return row["arch"], weights
