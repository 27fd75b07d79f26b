"""Which product has Greenplum's catalogs: Greenplum, or one made from it; asked by the engines, the doctor and cli.

What differs within the product, and not only in its name, is in its engine and in its dialect (make/dialects.py).
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """A server with Greenplum's catalogs.

    Attributes
    ----------
    name : str
        As engines and dialects are named.
    title : str
        As messages name it.
    major : int
        Major version of the first PostgreSQL in it that can be used.
    first : str
        The version of the product that has it.
    """

    name: str
    title: str
    major: int
    first: str


GREENPLUM = Product("greenplum", "Greenplum", 12, "Greenplum 7")
CLOUDBERRY = Product("cloudberry", "Cloudberry", 14, "Cloudberry 1")

#: Returns one row; `product_of` takes its columns.
PRODUCT = (
    "SELECT pg_catalog.to_regclass('pg_catalog.gp_segment_configuration') IS NOT NULL AS has_segments,"
    " pg_catalog.version() AS version"
)
# "PostgreSQL 14.4 (Apache Cloudberry 2.0.0-incubating build 1) on ..."; before it joined Apache, "(Cloudberry Database"
_CLOUDBERRY = re.compile(r"\((?:Apache )?Cloudberry\b")


def product_of(has_segments: bool, version: str) -> Product | None:
    """Return the product that a server is, by its catalogs and its version(); None for PostgreSQL without segments."""
    if not has_segments:
        return None
    return CLOUDBERRY if _CLOUDBERRY.search(version) else GREENPLUM
