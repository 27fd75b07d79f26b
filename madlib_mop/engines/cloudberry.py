"""The engine Cloudberry: Greenplum's engine, on a server made from Greenplum 7 with PostgreSQL 14 or newer.

What is the same is not written again. The settings that Cloudberry has and Greenplum lacks are in
`engines.sessions.access`, as all settings that only some servers have.
"""

from madlib_mop.engines.greenplum import CLOUDBERRY, Greenplum


class Cloudberry(Greenplum):
    """A Cloudberry cluster."""

    name = CLOUDBERRY.name
    product = CLOUDBERRY
