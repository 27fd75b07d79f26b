"""Helpers of the tests of searches: iris and two networks, calls of madlib_keras_automl, a search's decisions."""

from dataclasses import dataclass

from tests.helpers.iris import load_iris, pack_iris, perceptron

COMPILE = """{'loss': ['categorical_crossentropy'], 'metrics': [['accuracy']],
              'optimizer_params_list': [{'optimizer': ['Adam'], 'lr': [0.001, 0.1, 'log']}]}"""
FIT = "{'batch_size': [7, 9], 'epochs': [1]}"  # of 60 rows in a segment, so both share one trace


def prepare(db) -> None:
    """Load iris, pack it into ``train`` and ``valid``, and load a single layer and a perceptron."""
    load_iris(db)
    pack_iris(db, 2, "train", "valid")
    for widths in ((3,), (10, 3)):
        db.rows("SELECT madlib.load_keras_model('arch', %s::json)", [perceptron(*widths)])


def arguments(table: str, method: str | None, params: str | None, **options) -> dict:
    """Return the arguments of a call of madlib_keras_automl on iris, by name; ``options`` go before the usual ones."""
    return {
        "source_table": "train", "model_output_table": table, "model_arch_table": "arch",
        "model_selection_table": f"{table}_mst", "model_id_list": [1, 2], "compile_params_grid": COMPILE,
        "fit_params_grid": FIT, "automl_method": method, "automl_params": params, "validation_table": "valid",
        **options,
    }  # fmt: skip


def statement(given: dict) -> str:
    """Return the statement of the call, with a placeholder for each argument."""
    return f"SELECT madlib.madlib_keras_automl({', '.join(f'{name} := %s' for name in given)})"


@dataclass(frozen=True)
class Searched:
    """A search that has returned."""

    run_id: int
    table: str
    notices: str


def search(db, table: str, method: str | None, params: str | None, role: str | None = None, **options) -> Searched:
    """Call madlib_keras_automl on iris, and wait for it."""
    given = arguments(table, method, params, **options)
    connection = db.connect(role)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement(given), list(given.values()))
    finally:
        connection.close()
    return Searched(db.value("SELECT max(run_id) FROM madlib_mop.run"), table, "".join(connection.notices))


def results(db, run_id: int) -> list[tuple]:
    """Return the results that a search received, (event, mst_key, epoch, loss), in sorted order."""
    return db.rows(
        "SELECT DISTINCT event, mst_key, epoch, loss FROM madlib_mop.search_history WHERE run_id = %s ORDER BY 1, 2, 3",
        [run_id],
    )


def decisions(db, run_id: int) -> list[tuple]:
    """Return the decisions of a search, without the results that led to them."""
    return db.rows(
        "SELECT action, action_mst_key, until_epoch, source_mst_key, reason, compile_params, fit_params"
        " FROM madlib_mop.search_history WHERE run_id = %s AND action IS NOT NULL"
        " ORDER BY action_mst_key, until_epoch, action",
        [run_id],
    )


def states(db, run_id: int) -> dict[int, tuple]:
    """Return state, epoch and the digest of weights and optimizer of each model."""
    rows = db.rows("SELECT mst_key, state, epoch, digest FROM madlib_mop.model WHERE run_id = %s", [run_id])
    return {row[0]: row[1:] for row in rows}
