"""Checks of the server itself: its version, PL/Python, the extension, and its resources for a run."""

from collections.abc import Iterator

from mop_backend.frames import Header
from mop_backend.memory import LOADED_TRAINER_BYTES

from madlib_mop import __version__
from madlib_mop.catalog.drivers import FREE_CONNECTIONS, N_CALLER_AND_DRIVER, N_LEFT_FREE, n_segment_sessions
from madlib_mop.cli.doctor import citus
from madlib_mop.cli.doctor.context import CheckContext
from madlib_mop.cli.doctor.findings import CheckState, Finding

_MIN_MAJOR = 15


def check(context: CheckContext) -> Iterator[Finding]:
    """Return the findings about versions, PL/Python and the extension."""
    yield _version(context)
    if not context.is_superuser:
        yield Finding(
            "superuser",
            CheckState.WARN,
            f"role {context.role} is not a superuser: checks inside the server are skipped",
            "Run the doctor with a superuser's --dsn.",
        )
    yield _plpython(context)
    yield _extension(context)


def check_resources(context: CheckContext) -> Iterator[Finding]:
    """Return the findings about connections, memory and the check for vanished clients."""
    yield _connections(context)
    if context.product is None:  # otherwise the trainers run on the hosts of the segments
        yield from _limits(context)
        yield _memory(context)
    if context.setting("client_connection_check_interval") is not None:  # available since PostgreSQL 14
        yield _client_check(context)


def _version(context: CheckContext) -> Finding:
    found = f"PostgreSQL {context.setting('server_version')}"
    if product := context.product:
        found = f"{product.title}, {found}"
        if context.major < product.major:
            first = f"{product.first} (PostgreSQL {product.major})"
            return Finding("server", CheckState.FAIL, found, f"{first} is the first that can be used.")
    elif context.major < _MIN_MAJOR:
        return Finding("server", CheckState.FAIL, found, f"PostgreSQL {_MIN_MAJOR} or newer is required.")
    return Finding("server", CheckState.OK, found)


def _plpython(context: CheckContext) -> Finding:
    available = context.value("SELECT 1 FROM pg_catalog.pg_available_extensions WHERE name = 'plpython3u'")
    if not available:
        return Finding(
            "plpython3u",
            CheckState.FAIL,
            "the server has no PL/Python",
            f"It comes with {context.product.title}: install all of it."
            if context.product
            else f"Install it; on Debian: apt-get install postgresql-plpython3-{context.major}",
        )
    if not context.value("SELECT 1 FROM pg_catalog.pg_language WHERE lanname = 'plpython3u'"):
        return Finding(
            "plpython3u",
            CheckState.FAIL,
            f"not installed in database {context.database}",
            "As a superuser: CREATE EXTENSION madlib_mop CASCADE",
        )
    probe = context.probe
    if probe.refusal:
        return Finding("plpython3u", CheckState.OK, "installed in this database")
    if probe.error:
        return Finding(
            "plpython3u",
            CheckState.FAIL,
            f"it does not work: {probe.error}",
            f"Install {context.product.title}'s plpython3u anew."
            if context.product
            else f"Install PL/Python anew; on Debian: apt-get install --reinstall postgresql-plpython3-{context.major}",
        )
    return Finding("plpython3u", CheckState.OK, f"with Python {probe.get('python')}")


def _extension(context: CheckContext) -> Finding:
    offered = context.value("SELECT default_version FROM pg_catalog.pg_available_extensions WHERE name = 'madlib_mop'")
    installed = context.extension_version
    if installed is None and offered is None:
        return Finding(
            "extension",
            CheckState.FAIL,
            "extension madlib_mop is not available on the server",
            "In the clone, as a user with the right to write there: make install "
            "PG_CONFIG=/path/to/this/server's/pg_config",
        )
    if installed is None:
        return Finding(
            "extension",
            CheckState.FAIL,
            f"not installed in database {context.database}",
            "As a superuser: CREATE EXTENSION madlib_mop CASCADE",
        )
    if installed != __version__ and offered == __version__:
        return Finding(
            "extension",
            CheckState.FAIL,
            f"version {installed}, but the library is {__version__}",
            "As a superuser: ALTER EXTENSION madlib_mop UPDATE",
        )
    if installed != __version__:
        return Finding(
            "extension",
            CheckState.FAIL,
            f"version {installed}, but this is the doctor of version {__version__}",
            "Run the doctor of the server's own library, or install this version: make install PG_CONFIG=...",
        )
    return Finding("extension", CheckState.OK, f"version {installed}")


def _connections(context: CheckContext) -> Finding:
    limit = context.number("max_connections")
    free = context.value(FREE_CONNECTIONS) + 1  # the doctor's own ends
    segments = _segments(context)
    needed = n_segment_sessions(segments, segments - _segments_here(context)) + N_CALLER_AND_DRIVER
    beside = needed + N_LEFT_FREE
    needs = f"a run on {segments} segment(s) needs {needed}, or {beside} while another one trains"
    found = f"{free} of {limit} free; {needs}"
    if free < beside:
        mend = f"ALTER SYSTEM SET max_connections = {limit + needed}; then restart the server."
        if context.product:
            at_segments = 3 * (limit + needed)  # the same ratio as in Greenplum's own settings
            mend = f"gpconfig -c max_connections -v {at_segments} -m {limit + needed}; then restart it: gpstop -ra"
        return Finding("connections", CheckState.FAIL if free < needed else CheckState.WARN, found, mend)
    return Finding("connections", CheckState.OK, found)


def limits_of(machine: Header) -> str | None:
    """Return the limits of a server's control groups in words; None without one.

    Parameters
    ----------
    machine : dict
        The fields of `mop_backend.machine.Machine`.
    """
    parts = []
    if (processors := machine["processor_limit"]) is not None:
        parts.append(f"{processors:.4g} processor(s)")
    if (n_bytes := machine["memory_limit_bytes"]) is not None:
        parts.append(f"{n_bytes / 2**30:.1f} GiB of memory")
    return " and ".join(parts) or None


def _limits(context: CheckContext) -> Iterator[Finding]:
    machine = context.probe.get("machine")
    if machine is not None and (limits := limits_of(machine)) is not None:
        yield Finding("limits", CheckState.OK, f"the server's control group (container, slice) may use {limits}")


def _memory(context: CheckContext) -> Finding:
    free = (context.probe.get("machine") or {}).get("available_bytes")
    if free is None:
        return Finding("memory", CheckState.SKIP, "known only where the server can read its library")
    needed = _segments_here(context) * LOADED_TRAINER_BYTES
    needs = f"{_segments_here(context)} trainer(s) need {needed / 2**30:.1f} GiB, and memory for their data"
    found = f"{free / 2**30:.1f} GiB free; {needs}"
    if free < needed:
        return Finding(
            "memory", CheckState.WARN, found, "Use fewer segments: SET madlib_mop.segments = 1 before packing."
        )
    return Finding("memory", CheckState.OK, found)


def _client_check(context: CheckContext) -> Finding:
    interval = context.setting("client_connection_check_interval")
    if interval == "0":
        return Finding(
            "vanished clients",
            CheckState.WARN,
            "the server does not check during a statement whether the client is still connected",
            "ALTER SYSTEM SET client_connection_check_interval = '500ms'; SELECT pg_reload_conf();",
        )
    return Finding("vanished clients", CheckState.OK, f"checked every {interval}")


def _segments(context: CheckContext) -> int:
    """Return the number of segments of a packed table by default: all of them, at other hosts too."""
    if context.product:
        return int(
            context.value("SELECT count(*) FROM pg_catalog.gp_segment_configuration WHERE content >= 0 AND role = 'p'")
        )
    asked = context.setting("madlib_mop.segments")
    if asked and asked.isdigit():
        return int(asked)
    if (at_nodes := citus.n_segments(context)) is not None:
        return at_nodes + (_processors(context) if citus.has_shards_here(context) else 0)
    return _processors(context)


def _segments_here(context: CheckContext) -> int:
    """Return how many of these segments are on this server."""
    if citus.n_segments(context) is None:
        return _segments(context)
    return min(_segments(context), _processors(context)) if citus.has_shards_here(context) else 0


def _processors(context: CheckContext) -> int:
    return (context.probe.get("machine") or {}).get("processors") or 2
