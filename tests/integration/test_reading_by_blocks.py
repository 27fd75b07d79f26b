"""Rows of ordinary tables: read by ranges of blocks where that reads each row once, otherwise by a cursor."""

import pytest

from madlib_mop.driver.data.engine import engine_of
from tests.helpers.direct_session import DirectSession

pytestmark = pytest.mark.one_session

COLUMNS = "(i integer, t text, y text, x integer)"
N_ROWS = 2000
FILL = f"INSERT INTO part SELECT i, md5(i::text), 'y' || i % 2, i % 100 FROM generate_series(1, {N_ROWS}) AS i"
BY_BLOCKS, BY_ROWS = True, False


@pytest.fixture
def session(db):
    with db.connect(autocommit=False) as connection, connection.cursor() as cursor:
        yield cursor
        connection.rollback()
    connection.close()


def packed(cursor, source: str, output: str) -> list[tuple]:
    """Pack a table; return all that it was packed to."""
    cursor.execute(f"SELECT madlib_mop.pack_columns('{source}', '{output}', 'y', validation => 0.2, seed => 1)")
    rows = []
    for table in (output, f"{output}_validation"):
        cursor.execute(f"SELECT * FROM {table} ORDER BY buffer_id")
        rows += [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in cursor.fetchall()]
        cursor.execute(f"SELECT preprocessor_digest FROM {table}_summary")
        rows += cursor.fetchall()
    return rows


def test_blocks_and_rows_are_packed_to_the_same_bits(session):
    session.execute(f"CREATE TABLE part {COLUMNS}; {FILL.replace(str(N_ROWS), '100000')}")
    session.execute(
        "DELETE FROM part WHERE i % 3 = 0 OR i BETWEEN 20000 AND 70000; UPDATE part SET i = -i WHERE i < 99"
    )
    session.execute("CREATE VIEW of_part AS SELECT * FROM part")
    session.execute("SELECT pg_relation_size('part') / current_setting('block_size')::integer")
    assert session.fetchone()[0] > 512, "several ranges, of which some have no visible row"
    assert packed(session, "part", "by_blocks") == packed(session, "of_part", "by_rows")


EVERY_TYPE = """
CREATE DOMAIN share AS real CHECK (value >= 0);
CREATE DOMAIN word AS varchar(9);
CREATE TYPE size AS ENUM ('s', 'm');
CREATE TABLE part AS SELECT
    i AS i4, (i % 7)::smallint AS i2, (i::bigint << 40) AS i8, i * 0.1::real AS f4, i * 0.1::double precision AS f8,
    (i * 0.01)::numeric(9, 2) AS n, i % 2 = 0 AS b, (i % 5)::oid AS o, (i * 0.5)::share AS s, ('w' || i % 9)::word AS w,
    ('t' || i % 9)::text AS t, ('v' || i % 9)::varchar AS v, ('b' || i % 9)::char(5) AS c,
    (ARRAY['s', 'm'])[1 + i % 2]::size AS e, date '2020-01-01' + i % 900 AS d,
    timestamp '2020-01-01' + i * interval '1 minute' AS ts,
    timestamptz '2020-01-01 00:00+00' + i * interval '1 second' AS tz, time '00:00' + i * interval '1 second' AS h,
    timetz '00:00+02' + i * interval '1 second' AS hz, i * interval '1 hour' AS l, ARRAY[i, i / 2] AS a,
    md5((i % 9)::text)::uuid AS u, 'y' || i % 3 AS y
FROM generate_series(1, 20000) AS i;
UPDATE part SET i2 = NULL, i8 = NULL, f4 = NULL, f8 = NULL, n = NULL, b = NULL, o = NULL, s = NULL, w = NULL, t = NULL,
    v = NULL, c = NULL, e = NULL, d = NULL, ts = NULL, tz = NULL, h = NULL, hz = NULL, l = NULL, u = NULL
WHERE i4 % 11 = 0 OR i4 BETWEEN 3000 AND 15000;
UPDATE part SET i4 = NULL WHERE i4 % 13 = 0
"""


def test_values_of_every_type_and_null_are_read_by_blocks_as_by_rows(session):
    session.execute(f"{EVERY_TYPE}; CREATE VIEW of_part AS SELECT * FROM part")
    assert packed(session, "part", "by_blocks") == packed(session, "of_part", "by_rows")
    session.execute("SET client_encoding = 'LATIN1'")  # texts are converted, and sent in records
    assert packed(session, "part", "in_latin1") == packed(session, "of_part", "by_rows_again")


def test_a_table_of_joined_columns_alone(session):
    """No column of such a table is sent in records."""
    session.execute("CREATE TABLE part AS SELECT i % 100 AS x, i % 2 = 0 AS y FROM generate_series(1, 3000) AS i")
    session.execute("DELETE FROM part WHERE x < 15; CREATE VIEW of_part AS SELECT * FROM part")
    assert packed(session, "part", "by_blocks") == packed(session, "of_part", "by_rows")


def test_a_table_of_the_most_columns(session):
    """More than a SELECT list has room for, if each text were joined by itself."""
    columns = ", ".join(f"'t' || (i + {j}) % 3 AS t{j}" for j in range(300))
    session.execute(f"CREATE TABLE part AS SELECT i % 2 = 0 AS y, {columns} FROM generate_series(1, 300) AS i")
    more = ", ".join(f"ADD z{j} smallint DEFAULT {j}" for j in range(1290))
    session.execute(f"ALTER TABLE part {more}; CREATE VIEW of_part AS SELECT * FROM part")
    ignored = ", ".join(f"'t{j}'" for j in range(250))
    digests = []
    for source, output in (("part", "by_blocks"), ("of_part", "by_rows")):
        arguments = f"'{source}', '{output}', 'y', exclude => ARRAY[{ignored}], seed => 1"
        session.execute(f"SELECT madlib_mop.pack_columns({arguments})")
        session.execute(f"SELECT preprocessor_digest FROM {output}_summary")
        digests += session.fetchall()
    assert digests[0] == digests[1]


PARTITIONS = "CREATE TABLE part_a PARTITION OF part FOR VALUES FROM (0) TO (50); CREATE TABLE part_b PARTITION OF part"
KINDS = {
    "table": (BY_BLOCKS, f"CREATE TABLE part {COLUMNS}; {FILL}"),
    "names of the query": (
        BY_BLOCKS,
        f"CREATE TABLE part {COLUMNS}; {FILL}; ALTER TABLE part ADD g integer, ADD b text, ADD r integer, ADD s text;"
        " UPDATE part SET g = i, b = 'b' || i % 3, r = i % 50, s = 's' || i % 3",
    ),
    "temporary": (BY_BLOCKS, f"CREATE TEMPORARY TABLE part {COLUMNS}; {FILL}"),
    "materialized": (
        BY_BLOCKS,
        f"CREATE TABLE whole {COLUMNS}; {FILL.replace('part', 'whole')};"
        " CREATE MATERIALIZED VIEW part AS SELECT * FROM whole",
    ),
    "out of line": (
        BY_ROWS,
        f"CREATE TABLE part {COLUMNS}; ALTER TABLE part ALTER t SET STORAGE EXTERNAL;"
        f" {FILL.replace('md5(i::text)', 'repeat(md5(i::text), 100)')}",
    ),
    "partitions": (BY_ROWS, f"CREATE TABLE part {COLUMNS} PARTITION BY RANGE (i); {PARTITIONS} DEFAULT; {FILL}"),
    "inheritance": (
        BY_ROWS,
        f"CREATE TABLE part {COLUMNS}; CREATE TABLE part_a () INHERITS (part);"
        f" {FILL.replace('INTO part', 'INTO part_a')}",
    ),
    "policies": (BY_ROWS, f"CREATE TABLE part {COLUMNS}; {FILL}; ALTER TABLE part ENABLE ROW LEVEL SECURITY"),
    "setting": (BY_ROWS, f"SET LOCAL enable_tidscan = off; CREATE TABLE part {COLUMNS}; {FILL}"),
    "view": (BY_ROWS, f"CREATE TABLE whole {COLUMNS}; {FILL.replace('part', 'whole')};"
                      " CREATE VIEW part AS SELECT * FROM whole"),
}  # fmt: skip


@pytest.mark.one_case
@pytest.mark.parametrize(("how", "made"), KINDS.values(), ids=KINDS)
def test_every_kind_of_table_gives_each_row_once(session, how, made):
    session.execute(made)
    caller = DirectSession(session.connection)
    part = caller.relation("part", "source_table", any_type=True)
    assert engine_of(caller).reads_by_blocks(caller, part) is how
    session.execute("SET LOCAL search_path = public")  # a direct session pins it
    session.execute("SELECT madlib_mop.pack_columns('part', 'packed', 'y', seed => 1)")
    session.execute("SELECT sum((numbers_shape)[1]) FROM packed")
    assert session.fetchone()[0] == N_ROWS


def test_rows_that_the_transaction_wrote_are_read(session):
    session.execute(f"CREATE TABLE part {COLUMNS}; {FILL}; UPDATE part SET i = i + 1 WHERE i <= 100; DELETE FROM part"
                    " WHERE i > 1500")  # fmt: skip
    session.execute("SELECT madlib_mop.pack_columns('part', 'packed', 'y', seed => 1)")
    session.execute("SELECT sum((numbers_shape)[1]) FROM packed")
    assert session.fetchone()[0] == 1500


def test_a_bad_value_is_named_by_its_row(session):
    session.execute(f"CREATE TABLE part {COLUMNS}; {FILL}; ALTER TABLE part ADD z double precision")
    session.execute("UPDATE part SET z = 'NaN' WHERE i = 1234; SELECT ctid::text FROM part WHERE i = 1234")
    ctid = session.fetchone()[0]
    with pytest.raises(Exception, match="column 'z' holds NaN") as caught:
        session.execute("SELECT madlib_mop.pack_columns('part', 'packed', 'y', seed => 1)")
    assert f"row with ctid {ctid}" in str(caught.value)


def test_an_error_of_the_last_buffer_is_raised(session):
    session.execute(f"CREATE TABLE part {COLUMNS}; {FILL}; CREATE SCHEMA guards")
    session.execute(
        """
        CREATE FUNCTION guards.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$BEGIN IF new.buffer_id = 3 THEN RAISE EXCEPTION 'no room for buffer 3'; END IF; RETURN new; END$$;
        CREATE FUNCTION guards.guard() RETURNS event_trigger LANGUAGE plpgsql AS
            $$BEGIN
                CREATE TRIGGER guard BEFORE INSERT ON public.packed FOR EACH ROW EXECUTE FUNCTION guards.refuse();
            END$$;
        CREATE EVENT TRIGGER guard ON ddl_command_end WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION guards.guard();
        SET LOCAL search_path = public
        """
    )
    with pytest.raises(Exception, match="no room for buffer 3"):
        session.execute("SELECT madlib_mop.pack_columns('part', 'packed', 'y', seed => 1, buffer_size => 500)")
