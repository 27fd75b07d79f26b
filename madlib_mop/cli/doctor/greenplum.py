"""Checks of a Greenplum or Cloudberry cluster: its segments, their hosts by queries that run there, and its locks."""

import json
from collections.abc import Iterator
from importlib import resources

import psycopg2
from mop_backend.frames import Header
from mop_backend.memory import LOADED_TRAINER_BYTES

from madlib_mop.cli.doctor.context import CheckContext, message_of
from madlib_mop.cli.doctor.findings import CheckState, Finding
from madlib_mop.cli.doctor.server import limits_of
from madlib_mop.engines.greenplum import Product

_DOWN = (
    "SELECT content::pg_catalog.int4, hostname FROM pg_catalog.gp_segment_configuration WHERE status <> 'u' ORDER BY 1"
)
_WITHOUT_KEY = """
SELECT c.content::pg_catalog.int4 FROM pg_catalog.gp_segment_configuration c
WHERE c.content >= 0 AND c.role = 'p' AND NOT EXISTS (
    SELECT FROM madlib_mop.segment_key k WHERE k.gp_segment_id = c.content)
ORDER BY 1
"""
_HOSTS = """
SELECT hostname::pg_catalog.text, pg_catalog.min(content)::pg_catalog.int4, pg_catalog.count(*)
FROM pg_catalog.gp_segment_configuration WHERE content >= 0 AND role = 'p' GROUP BY 1 ORDER BY 2
"""
_ASK = (
    "SELECT gp_segment_id::pg_catalog.int4, pg_temp.madlib_mop_segment(%s)"
    " FROM gp_dist_random('gp_id') WHERE gp_segment_id = ANY (%s)"
)
_REINSTALL = "On the coordinator's host, as the cluster's owner: madlib-mop install --{}"
# Since PostgreSQL 14. A run's sessions set it to 0 on the coordinator; Cloudberry does not pass it to segments.
_ENDS_IDLE = "idle_session_timeout"


def check(context: CheckContext, product: Product) -> Iterator[Finding]:
    """Return the findings about a cluster, one a host among them."""
    yield _detector(context)
    yield _up(context)
    if context.extension_version is not None and context.is_superuser:
        yield _keys(context)
    yield from _hosts(context, _REINSTALL.format(product.name))


def _detector(context: CheckContext) -> Finding:
    name = "deadlock detector"
    if context.setting("gp_enable_global_deadlock_detector") == "on":
        return Finding(name, CheckState.OK, "gp_enable_global_deadlock_detector is on: workers commit concurrently")
    return Finding(
        name,
        CheckState.WARN,
        "gp_enable_global_deadlock_detector is off: commits of different workers wait for each other",
        "This slows down short visits only. gpconfig -c gp_enable_global_deadlock_detector -v on; then restart it: "
        "gpstop -ra",
    )


def _up(context: CheckContext) -> Finding:
    with context.session.cursor() as cursor:
        cursor.execute(_DOWN)
        down = cursor.fetchall()
    if down:
        found = "marked down: " + ", ".join(f"{content} on {host}" for content, host in down)
        return Finding("segments", CheckState.WARN, found, "Run gprecoverseg to recover them.")
    return Finding("segments", CheckState.OK, "all are up")


def _keys(context: CheckContext) -> Finding:
    with context.session.cursor() as cursor:
        cursor.execute(_WITHOUT_KEY)
        missing = [number for (number,) in cursor.fetchall()]
    if missing:
        mend = "Finish the expansion of the cluster: ALTER TABLE madlib_mop.segment_key EXPAND TABLE;"
        return Finding("distribution keys", CheckState.FAIL, f"missing for segments {missing}", mend)
    return Finding("distribution keys", CheckState.OK, "present for each segment")


def _hosts(context: CheckContext, again: str) -> Iterator[Finding]:
    with context.session.cursor() as cursor:
        cursor.execute(_HOSTS)
        hosts = cursor.fetchall()
        library, inside = context.probe.get("library"), context.probe.get("inside")
        if library is None or inside is None:
            for host, _, _ in hosts:
                yield Finding(f"host {host}", CheckState.SKIP, "the coordinator's own library could not be checked")
            return
        try:
            cursor.execute(resources.files(__package__).joinpath("segment.sql").read_text())
            cursor.execute(_ASK, [library, [segment for _, segment, _ in hosts]])
            answers = {segment: json.loads(text) for segment, text in cursor.fetchall()}
        except psycopg2.Error as error:
            reason = message_of(error)
            yield Finding("hosts", CheckState.FAIL, f"a query at the segments fails: {reason}", again)
            return
    for host, segment, n_segments in hosts:
        yield _host(f"host {host}", answers[segment], inside, n_segments, again)


def _host(name: str, answer: Header, inside: Header, n_segments: int, again: str) -> Finding:
    """Check a segment's report of its host; ``inside`` is the report of the coordinator's library."""
    if "error" in answer:
        return Finding(name, CheckState.FAIL, f"as {answer['user']}: {answer['error']}", again)
    versions = answer["versions"]
    broken = [f"{name}: {module['error']}" for name, module in versions["modules"].items() if "error" in module]
    if broken:
        return Finding(name, CheckState.FAIL, f"cannot be imported: {'; '.join(broken)}", again)
    if (versions["version"], versions["modules"]) != (inside["version"], inside["modules"]):
        return Finding(name, CheckState.FAIL, "its library has other versions than the coordinator's", again)
    found = (
        f"{n_segments} segment(s) as {answer['user']}, Python {answer['python']}, library {versions['version']},"
        f" TensorFlow {versions['modules']['tensorflow']['version']}"
    )
    if (limits := limits_of(answer["machine"])) is not None:
        found += f", limited to {limits}"
    available = answer["machine"]["available_bytes"]
    if available is not None and available < n_segments * LOADED_TRAINER_BYTES:
        free = f"{available / 2**30:.1f} GiB free; {n_segments} trainer(s)"
        mend = "SET madlib_mop.trainer_memory_mb to limit the memory of each trainer."
        return Finding(
            name, CheckState.WARN, f"{found}; {free} take {n_segments * LOADED_TRAINER_BYTES / 2**30:.1f} GiB", mend
        )
    if (timeout := answer.get(_ENDS_IDLE)) not in (None, "0"):
        wrong = f"{_ENDS_IDLE} is {timeout} there, and ends processes of sessions that work for a run"
        return Finding(name, CheckState.WARN, f"{found}; {wrong}", f"gpconfig -c {_ENDS_IDLE} -v 0; then gpstop -u")
    return Finding(name, CheckState.OK, found)
