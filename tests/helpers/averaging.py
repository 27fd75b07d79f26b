"""Helpers of the tests of model averaging: the digits packed into several numbers of segments, and a call of fit."""

from tests.helpers.training import ADAM, Fitted, load_architectures, load_digits, one_thread, pack

FIT_PARAMS = "batch_size=16, epochs=1"


def prepare(db) -> None:
    """Pack the digits into 1, 2 and 3 segments, and as ``uneven``: 4 segments, one of them empty and one short."""
    one_thread()
    load_digits(db, 288, 80)
    load_architectures(db)
    for p in (1, 2, 3):
        pack(db, p, buffer_size=24 + p, suffix=f"_{p}")
    db.rows(
        "CREATE TABLE uneven (LIKE train_3) PARTITION BY LIST (__dist_key__);"
        " CREATE TABLE uneven_0 PARTITION OF uneven FOR VALUES IN (0);"
        " CREATE TABLE uneven_1 PARTITION OF uneven FOR VALUES IN (1);"
        " CREATE TABLE uneven_2 PARTITION OF uneven FOR VALUES IN (2);"
        " CREATE TABLE uneven_3 PARTITION OF uneven FOR VALUES IN (3);"
        " INSERT INTO uneven SELECT * FROM train_3;"
        " UPDATE uneven SET __dist_key__ = 3 WHERE __dist_key__ = 2;"
        " DELETE FROM uneven WHERE (__dist_key__, buffer_id) IN"
        "   (SELECT __dist_key__, max(buffer_id) FROM uneven GROUP BY 1 HAVING __dist_key__ > 0);"
        " DELETE FROM uneven WHERE buffer_id = (SELECT max(buffer_id) FROM uneven WHERE __dist_key__ = 3);"
        " CREATE TABLE uneven_summary AS TABLE train_3_summary"
    )


def fit_statement(
    table: str,
    n_iterations: int,
    model_id: int = 1,
    compile_params: str = ADAM,
    fit_params: str | None = FIT_PARAMS,
    **options,
) -> tuple[str, list]:
    """Write a call of madlib_keras_fit; ``options`` are its arguments by name."""
    options = {"source_table": "train_2", **options}
    named = "".join(f", {name} := %s" for name in options)
    return (
        "SELECT madlib.madlib_keras_fit(model := %s, model_arch_table := 'arch', model_id := %s, compile_params := %s,"
        f" fit_params := %s, num_iterations := %s{named})",
        [table, model_id, compile_params, fit_params, n_iterations, *options.values()],
    )


def average(db, table: str, n_iterations: int, *parameters, **options) -> Fitted:
    """Train one model by model averaging."""
    connection = db.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(*fit_statement(table, n_iterations, *parameters, **options))
            cursor.execute("SELECT max(run_id) FROM madlib_mop.run WHERE model_output_table LIKE %s", [f"%.{table}"])
            return Fitted(cursor.fetchone()[0], table, "".join(connection.notices))
    finally:
        connection.close()
