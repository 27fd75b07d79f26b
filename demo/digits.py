"""Prints the SQL that loads scikit-learn's handwritten digits into table demo.digits; `make demo` pipes it to psql."""

from sklearn.datasets import load_digits

TABLE = """
SET client_min_messages = warning;
CREATE SCHEMA IF NOT EXISTS demo;
DROP TABLE IF EXISTS demo.digits CASCADE;
CREATE TABLE demo.digits (
    id      integer PRIMARY KEY,
    pixels  real[] NOT NULL,  -- 8 rows of 8 columns of 1 channel, ink from 0 to 16
    digit   integer NOT NULL  -- what a person read there
);
COPY demo.digits FROM stdin;"""


def array(value) -> str:
    """Write nested lists of numbers as PostgreSQL writes an array."""
    return "{" + ",".join(map(array, value)) + "}" if isinstance(value, list) else f"{value:g}"


data = load_digits()
print(TABLE)
for number, (image, digit) in enumerate(zip(data.images, data.target, strict=True)):
    print(number, array(image.reshape(8, 8, 1).tolist()), digit, sep="\t")
print("\\.")
