"""`gradient_boosting`: a baseline for networks on the rows that were held out from a packed table."""

import signal
import threading
from contextlib import closing

import psycopg2
import psycopg2.errors
import pytest

from tests.helpers.faults import alive, children, kill, wait_for
from tests.helpers.images import make_pets
from tests.helpers.security.attacks import user

pytestmark = pytest.mark.one_session

ANA, BEA = "ana", "bea"
ROWS = """
CREATE TABLE customers AS
SELECT i AS id, CASE WHEN i % 9 > 0 THEN 20 + i * 7 % 50 END AS age, 'city ' || i * 13 % 40 AS city,
       'words ' || i * 17 % 300 || ' and ' || i * 37 % 200 AS words, (i * 37 % 500)::float8 AS income,
       CASE WHEN i * 7 % 50 + i % 3 * 9 > 35 THEN 'yes' ELSE 'no' END AS left_us, i % 3 AS kind
FROM generate_series(1, 900) AS i
"""


@pytest.fixture(scope="module")
def shop(db):
    """Return a session of an ordinary role that has packed a table."""
    user(db, ANA)
    connection = db.connect(ANA)
    rows(connection, f"{ROWS}; SELECT 1")
    pack(connection, "packed", "left_us")
    yield connection
    connection.close()


@pytest.fixture(scope="module")
def measured(shop):
    return measure(shop, "'packed'")


def rows(connection, statement: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def pack(connection, output: str, dependent: str, more: str = "validation => 0.2, test => 0.2") -> None:
    call = f"'customers', '{output}', '{dependent}', exclude => '{{id}}', seed => 1"
    rows(connection, f"SELECT madlib_mop.pack_columns({call}{more and ', ' + more})")


def measure(connection, arguments: str) -> dict[tuple[str, str, str], tuple]:
    found = rows(
        connection,
        "SELECT output, data_set, metric, n_rows, value, baseline, seconds, note"
        f" FROM madlib_mop.gradient_boosting({arguments})",
    )
    return {(output, data_set, metric): tuple(rest) for output, data_set, metric, *rest in found}


def error(connection, arguments: str) -> psycopg2.Error:
    with pytest.raises(psycopg2.Error) as raised:
        measure(connection, arguments)
    assert "Traceback" not in str(raised.value)
    return raised.value


def test_it_is_measured_as_models_are_beside_the_best_constant_answer(shop, measured):
    found = measured
    assert {data_set for _, data_set, _ in found} == {"validation", "test"}
    assert {metric for _, _, metric in found} == {"accuracy", "balanced accuracy", "log loss", "AUC"}
    for data_set in ("validation", "test"):
        n_rows, value, baseline, seconds, note = found["left_us", data_set, "AUC"]
        assert [(n_rows,)] == rows(shop, f"SELECT sum(left_us_shape[1]) FROM packed_{data_set}")
        assert 0.9 < value <= 1.0 and baseline == 0.5 and seconds > 0
        assert note.startswith("scikit-learn ") and "540 training rows" in note and "sample" not in note


def test_a_named_table_is_measured_and_with_the_same_seed_it_is_the_same_and_nothing_is_left_behind(shop, measured):
    tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'ana'::regnamespace"
    before = rows(shop, tables)
    found = measure(shop, "'packed', 'packed_validation', seed => 1")
    assert {data_set for _, data_set, _ in found} == {"test"}
    wanted = {(o, metric): values[:3] for (o, data_set, metric), values in measured.items() if data_set == "validation"}
    assert {(o, metric): values[:3] for (o, _, metric), values in found.items()} == wanted
    assert rows(shop, tables) == before and rows(shop, "SELECT count(*) FROM madlib_mop.run") == [(0,)]


def test_several_targets_and_numbers_in_the_units_of_the_table(shop):
    pack(shop, "two", "income, kind")
    found = measure(shop, "'two'")
    measured = {(output, metric) for output, _, metric in found}
    assert measured >= {("income", "R2"), ("income", "MAE"), ("kind", "log loss")}
    assert 100 < found["income", "test", "RMSE"][2] < 200, "the deviation of numbers from 0 to 499"
    units = {
        data_set: found["income", data_set, "MAE"][1] / found["income", data_set, "scaled MAE"][1]
        for data_set in ("validation", "test")
    }
    assert units["validation"] == pytest.approx(units["test"], rel=1e-3) and 100 < units["test"] < 200
    rmse, scaled = found["income", "test", "RMSE"][1], found["income", "test", "scaled MSE"][1]
    assert rmse / scaled**0.5 == pytest.approx(units["test"], rel=1e-3)
    assert ("kind", "scaled MSE") not in measured


def test_what_it_cannot_train_on_is_one_error(shop):
    assert "was not made by pack_columns" in str(error(shop, "'customers'"))
    assert isinstance(error(shop, "'missing'"), psycopg2.errors.UndefinedTable)
    pack(shop, "whole", "left_us", "")
    assert "you have no table of rows held out from ana.whole" in str(error(shop, "'whole'"))
    assert "was not made by pack_columns" in str(error(shop, "'whole', 'customers'"))
    rows(shop, "SELECT madlib_mop.pack_columns('customers', 'other', 'left_us', validation => 0.3, seed => 2)")
    rows(
        shop,
        "ALTER TABLE other_validation RENAME TO whole_validation;"
        " ALTER TABLE other_validation_summary RENAME TO whole_validation_summary; SELECT 1",
    )
    assert "encoded by another preprocessor" in str(error(shop, "'whole'"))
    assert "encoded by another preprocessor" in str(error(shop, "'packed', 'whole_validation'"))
    assert "max_seconds must be a number above 0" in str(error(shop, "'packed', max_seconds => 0"))
    late = error(shop, "'packed', max_seconds => 0.01")
    assert isinstance(late, psycopg2.errors.ObjectNotInPrerequisiteState)
    assert "it was not ready after 0.01 s" in str(late)


def test_images_are_left_out(db, shop):
    make_pets(db, "ana.pets")
    db.rows("DELETE FROM ana.pets WHERE photo IS NULL; ALTER TABLE ana.pets OWNER TO ana; SELECT 1")
    for output, exclude in (("photos", "id"), ("only", "id,age,size")):
        call = f"'pets', '{output}', 'kind', exclude => '{{{exclude}}}', seed => 1, validation => 0.4"
        rows(shop, f"SELECT madlib_mop.pack_columns({call})")
    assert {values[-1].rpartition(", ")[2] for values in measure(shop, "'photos'").values()} == {"without images"}
    assert "the inputs are images only" in str(error(shop, "'only'"))


def test_a_cancel_ends_the_process(db, shop):
    session, found = shop.info.backend_pid, []

    def process() -> list[int]:
        drivers = children(session, "madlib_mop.driver")
        found.extend(pid for driver in drivers for pid in children(driver, "madlib_mop.trainer.boosting"))
        for pid in found:
            kill(pid, signal.SIGSTOP)  # otherwise it may be ready before the cancel
        return found

    def cancel() -> None:
        wait_for(process)
        db.rows("SELECT pg_cancel_backend(%s)", [session])

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    assert isinstance(error(shop, "'packed'"), psycopg2.errors.QueryCanceled)
    cancelling.join()
    wait_for(lambda: not any(map(alive, found)))


def test_tables_of_others_beside_the_packed_one_are_not_read(db, shop):
    """To read a view runs code of its owner, and the caller has not named it."""
    user(db, BEA)
    db.rows("CREATE SCHEMA shared; GRANT CREATE, USAGE ON SCHEMA shared TO ana, bea; SELECT 1")
    pack(shop, "shared.mine", "left_us", "validation => 0.2")
    with closing(db.connect(BEA)) as connection:
        rows(
            connection,
            "CREATE FUNCTION shared.attack() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'it ran'; END"
            " $$; CREATE VIEW shared.mine_test AS SELECT 1 AS buffer_id WHERE shared.attack(); CREATE VIEW"
            " shared.mine_test_summary AS SELECT 1 AS one WHERE shared.attack(); GRANT SELECT ON shared.mine_test,"
            " shared.mine_test_summary TO ana; SELECT 1",
        )
    assert {data_set for _, data_set, _ in measure(shop, "'shared.mine'")} == {"validation"}


def test_many_classes_are_one_error(shop):
    rows(
        shop,
        "CREATE TABLE many AS SELECT i * 7 % 601 AS x, 'class ' || i % 60 AS y FROM generate_series(1, 1200) AS i;"
        " SELECT madlib_mop.pack_columns('many', 'many_packed', 'y', validation => 0.2, seed => 1)",
    )
    assert "a target has 60 classes, and at most 50 are boosted" in str(error(shop, "'many_packed'"))


def test_rows_that_were_changed_by_hand_are_one_error(shop):
    """The owner of a packed table can write any bytes and shapes into it."""
    pack(shop, "spoilt", "left_us")
    column = rows(shop, "SELECT independent_varname FROM spoilt_summary")[0][0]
    first = column[0] if isinstance(column, list) else column
    rows(shop, f"BEGIN; UPDATE spoilt SET {first}_shape = '{{1000000000,1000000000}}'; SELECT 1")
    found = error(shop, "'spoilt'")
    assert isinstance(found, psycopg2.errors.ObjectNotInPrerequisiteState) and "[1000000000, 1000000000]" in str(found)
    rows(shop, "ROLLBACK; SELECT 1")
    rows(shop, "UPDATE spoilt_validation SET left_us_shape = '{7,3}'; SELECT 1")
    assert "left_us has 360 bytes for shape [7, 3], which is not a packed array" in str(error(shop, "'spoilt'"))
