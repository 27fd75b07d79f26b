"""Settings: superusers' in madlib_mop.setting, callers' with SET madlib_mop.<name>; read when a run is
planned, those of admission when it starts or resumes."""

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mop_backend.frames import Header
from mop_backend.keras_backends import BackendName, installing
from mop_backend.machine import processors
from mop_backend.memory import MIB, share_of_memory

from madlib_mop.driver.session.caller import CallerSession
from madlib_mop.errors import InvalidParameter, NotReady, not_whole

# Memory that a trainer maps before it has a model, and memory of each of its threads (TensorFlow 2.21: 337 MB with one
# thread, 450 with 8, 837 with 32), with some reserve for a model.
_IDLE_MB, _THREAD_MB = 400, 16

# name: (minimum, maximum); a caller may SET these too, but never above the value of a superuser's row
CALLER_SETTINGS = {
    "trainer_memory_mb": (256, 1 << 24),
    "trainer_threads": (1, 1024),
    "shard_cache_mb": (0, 1 << 24),
    "shard_disk_mb": (0, 1 << 24),
    "predict_memory_mb": (512, 1 << 24),
    "predict_idle_s": (1, 1 << 20),
    "host_wait_s": (1, 1 << 20),
    "trainer_idle_s": (0, 1 << 20),
    "policy_timeout_s": (1, 1 << 20),
}
_PREDICT_MEMORY_MB = 2048
_PREDICT_IDLE_S = 300
_HOST_WAIT_S = 600
_TRAINER_IDLE_S = 120
_POLICY_TIMEOUT_S = 10
CALLER_SWITCHES = ("materialise_features", "fused_training", "share_trainers", "backend", "direct_hops")
#: All settings that callers may SET; segments and hosts are read when rows are packed.
SESSION_SETTINGS = ("segments", "hosts", "admission", *CALLER_SETTINGS, *CALLER_SWITCHES)
# Group sizes of fused training: the default if it is "on" (larger groups are hardly faster: benchmarks/fusion.py), and
# the maximum.
_USUAL_GROUP, _LARGEST_GROUP = 8, 64
_ADMISSION = ("wait", "error", "off")
#: A size as PostgreSQL shows it, and the bits of its units.
_SIZE, _SHIFTS = re.compile(r"(\d+)(B|kB|MB|GB|TB)?"), {"B": 0, None: 10, "kB": 10, "MB": 20, "GB": 30, "TB": 40}
_ON, _OFF = ("on", "true", "yes", "1"), ("off", "false", "no", "0")


@dataclass(frozen=True)
class AdmissionRule:
    """What a run does if the server has no room for it.

    Attributes
    ----------
    mode : str
        ``wait``, ``error`` or ``off``.
    max_runs : int
        Number of runs that train at once.
    reading_limit_s : int
        Seconds after which a run that only waits for rows does not count any more.
    """

    mode: str
    max_runs: int
    reading_limit_s: int = 300


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes
    ----------
    worker_host : str
        The address for workers' password logins.
    trainer_memory_bytes : int
        Limit of one trainer's memory, on this server.
    memory_is_share : bool
        Whether that is its share of this machine's memory, because it is not set.
    trainer_threads : int
    shard_cache_bytes : int
        The part of a trainer's memory for caching shards between visits.
    cache_divisor : int or None
        The divisor of its memory for the cache; None if the cache's size is set.
    shard_disk_bytes : int
        Limit of a trainer's file, for rows that do not fit into the cache.
    shard_directory : str or None
        Where these files are on this server; None: in its directory of temporary files.
    predict_memory_bytes, predict_idle_s : int
        Memory limit and idle time of a trainer for madlib_mop.predict.
    share_trainers : bool
        Whether sessions of one role share these.
    host_wait_s : int
        Maximum waiting time for a lost host of a segment.
    trainer_idle_s : int
        How long trainers wait for the next run of the role after the end of a run.
    policy_timeout_s : int
        Time limit of one evaluation of a policy.
    sandbox : bool
        Whether trainers give up files, sockets and new processes after their start.
    materialise_features : bool
        Whether trainers keep what frozen first layers make of a shard, for the visits that follow.
    fused_training : int
        How many configurations of one shape may be trained together in one graph; 0 if none.
    backend : BackendName
        Keras' backend in trainers.
    direct_hops : bool
        Whether states stay at hosts, and hop from one to the next without passing this server.
    """

    worker_host: str
    trainer_memory_bytes: int
    memory_is_share: bool
    trainer_threads: int
    shard_cache_bytes: int
    cache_divisor: int | None
    predict_memory_bytes: int
    predict_idle_s: int
    host_wait_s: int
    trainer_idle_s: int
    policy_timeout_s: int
    sandbox: bool
    materialise_features: bool
    fused_training: int
    share_trainers: bool
    backend: BackendName = BackendName.TENSORFLOW
    shard_disk_bytes: int = 0
    shard_directory: str | None = None
    direct_hops: bool = False

    def trainer_start(self) -> Header:
        """Return the start parameters of a trainer."""
        return {
            "threads": self.trainer_threads,
            "memory_limit_bytes": self.trainer_memory_bytes,
            "shard_cache_bytes": self.shard_cache_bytes,
            "shard_disk_bytes": self.shard_disk_bytes,
            "shard_directory": self.shard_directory,
            "sandbox": self.sandbox,
            "materialise_features": self.materialise_features,
            "backend": str(self.backend),
        }

    def share_at_host(self, n_trainers: int) -> Header | None:
        """Return the parameters for sharing a host's memory among its trainers; None if a setting defines it.

        See `mop_backend.memory.start_here`.
        """
        return {"n_trainers": n_trainers, "cache_divisor": self.cache_divisor} if self.memory_is_share else None

    def session_trainer_start(self) -> Header:
        """Return the start parameters of a trainer for madlib_mop.predict.

        There can be many, so each has little memory and ends when idle.
        """
        return {
            **self.trainer_start(),
            "memory_limit_bytes": min(self.trainer_memory_bytes, self.predict_memory_bytes),
            "shard_cache_bytes": 0,
            "shard_disk_bytes": 0,
            "idle_s": self.predict_idle_s,
        }


class SuperuserSettings(Protocol):
    """The superusers' settings, from the record, or for predict from the caller's session."""

    def settings(self) -> dict[str, str]:
        """Return them by name."""


class FixedSettings:
    """The superusers' settings, which every user of the extension can read."""

    def __init__(self, session: CallerSession):
        rows = session.execute("SELECT name, value FROM madlib_mop.setting")
        self._values = {row["name"]: row["value"] for row in rows}

    def settings(self) -> dict[str, str]:
        return self._values


def read_settings(
    record: SuperuserSettings,
    session: CallerSession,
    n_trainers: int,
    use_caching: bool,
    backend: BackendName | None = None,
) -> Settings:
    """Read the settings for a run of ``n_trainers`` trainers on this server; ``backend`` replaces the setting.

    Raises
    ------
    InvalidParameter
        If a setting is not a number, is out of range, or prevents trainers from starting.
    """
    fixed = record.settings()
    memory_mb = _number("trainer_memory_mb", fixed, session, share_of_memory(n_trainers) // MIB)
    threads = _number("trainer_threads", fixed, session, 1)
    _enough_memory(memory_mb, threads)
    cache_divisor = 2 if use_caching else 4
    cache_mb = _number("shard_cache_mb", fixed, session, memory_mb // cache_divisor)
    return Settings(
        worker_host=fixed.get("worker_host", "127.0.0.1"),
        trainer_memory_bytes=memory_mb * MIB,
        memory_is_share=not _sources("trainer_memory_mb", fixed, session),
        trainer_threads=threads,
        shard_cache_bytes=cache_mb * MIB,
        cache_divisor=None if _sources("shard_cache_mb", fixed, session) else cache_divisor,
        predict_memory_bytes=_number("predict_memory_mb", fixed, session, _PREDICT_MEMORY_MB) * MIB,
        predict_idle_s=_number("predict_idle_s", fixed, session, _PREDICT_IDLE_S),
        host_wait_s=_number("host_wait_s", fixed, session, _HOST_WAIT_S),
        trainer_idle_s=_number("trainer_idle_s", fixed, session, _TRAINER_IDLE_S),
        policy_timeout_s=_number("policy_timeout_s", fixed, session, _POLICY_TIMEOUT_S),
        sandbox=fixed.get("sandbox", "on") != "off",
        materialise_features=_switch("materialise_features", fixed, session),
        fused_training=_fused_training(fixed, session),
        share_trainers=_switch("share_trainers", fixed, session),
        backend=backend or read_backend(record, session),
        shard_disk_bytes=_shard_disk_bytes(fixed, session),
        shard_directory=_shard_directory(fixed),
        direct_hops=_direct_hops(fixed, session),
    )


def read_admission(record: SuperuserSettings, session: CallerSession) -> AdmissionRule:
    """Read the settings ``admission``, ``max_runs`` and ``reading_limit_s``.

    Raises
    ------
    InvalidParameter
        If one has a wrong value, or a role that is not a superuser turns admission off.
    """
    fixed = record.settings()
    mode = "wait"
    for where, text in _sources("admission", fixed, session):
        word = text.strip().lower()
        is_own = where != "madlib_mop.setting"
        if word not in _ADMISSION or (is_own and word == "off" and mode != "off" and not session.info.is_superuser):
            who = " (off: superusers only)" if word == "off" else ""
            raise InvalidParameter(
                f"setting madlib_mop.admission must be one of {', '.join(_ADMISSION)}{who}."
                f" Received: {text!r} ({where})",
                hint=_reset_hint("admission"),
            )
        mode = word
    max_runs = _whole_of(fixed, "max_runs", max(2, processors()))
    return AdmissionRule(mode, max_runs, _whole_of(fixed, "reading_limit_s", AdmissionRule.reading_limit_s))


def _whole_of(fixed: Mapping[str, str], name: str, default: int) -> int:
    """Return a superusers' setting that is a whole number of 1 or more."""
    text = fixed.get(name, str(default))
    if not text.strip().isdecimal() or int(text) < 1:
        raise not_whole(
            f"setting {name}", 1, f"{text!r} (madlib_mop.setting)",
            f"DELETE FROM madlib_mop.setting WHERE name = '{name}'; resets it to its default.",
        )  # fmt: skip
    return int(text)


def read_backend(record: SuperuserSettings, session: CallerSession) -> BackendName:
    """Read the setting ``backend``; the caller's word counts before the superusers'.

    Raises
    ------
    InvalidParameter
        If there is no such backend.
    NotReady
        If it is not installed.
    """
    fixed = record.settings()
    name = BackendName.TENSORFLOW
    for where, text in _sources("backend", fixed, session):
        try:
            name = BackendName(text.strip().lower())
        except ValueError:
            raise InvalidParameter(
                f"setting madlib_mop.backend must be one of {', '.join(BackendName)}. Received: {text!r} ({where})",
                hint=_reset_hint("backend"),
            ) from None
    if importlib.util.find_spec(name) is None:
        raise NotReady(
            f"setting madlib_mop.backend is {name}, but the library has no package {name}",
            hint=f"An administrator installs it: {installing(name)}. {_reset_hint('backend')}",
        )
    return name


def _shard_disk_bytes(fixed: dict[str, str], session: CallerSession) -> int:
    """Return the limit of a trainer's file: that of the setting, and that of the caller's temporary files."""
    disk_mb = _number("shard_disk_mb", fixed, session, CALLER_SETTINGS["shard_disk_mb"][1])
    limit = _SIZE.fullmatch((session.caller_setting("temp_file_limit") or "").strip())
    if limit is None:  # -1: there is none
        return disk_mb * MIB
    # defence: temporary-files-of-trainers = disk_mb * MIB
    return min(disk_mb * MIB, int(limit[1]) << _SHIFTS[limit[2]])


def _shard_directory(fixed: dict[str, str]) -> str | None:
    """Return the directory of trainers' files. Raises InvalidParameter if this server cannot write there."""
    path = fixed.get("shard_directory")
    if path is None:
        return None
    if not os.path.isabs(path) or not os.path.isdir(path) or not os.access(path, os.W_OK | os.X_OK):
        raise InvalidParameter(
            "setting shard_directory must be the absolute path of a directory in which the server's operating system"
            f" user can write. Received: {path!r} (madlib_mop.setting)",
            hint="DELETE FROM madlib_mop.setting WHERE name = 'shard_directory'; resets it to its default.",
        )
    return path


def _enough_memory(memory_mb: int, threads: int) -> None:
    """Reject settings that trainers would reject at their start."""
    least = _IDLE_MB + _THREAD_MB * threads
    if memory_mb < least:
        raise InvalidParameter(
            f"setting madlib_mop.trainer_memory_mb is too small: with madlib_mop.trainer_threads = {threads},"
            f" a trainer without a model needs {least} MB. Received: {memory_mb}",
            hint=f"SET madlib_mop.trainer_memory_mb = {2 * least}; or fewer madlib_mop.trainer_threads.",
        )


def _switch(name: str, fixed: dict[str, str], session: CallerSession) -> bool:
    """Read a switch: on, unless a superuser or the caller has set it to off."""
    values = []
    for where, text in _sources(name, fixed, session):
        value = text.strip().lower()
        if value not in _ON + _OFF:
            raise InvalidParameter(
                f"setting madlib_mop.{name} must be on or off. Received: {text!r} ({where})",
                hint=_reset_hint(name),
            )
        values.append(value in _ON)
    return all(values)


def _direct_hops(fixed: dict[str, str], session: CallerSession) -> bool:
    """Read whether states go from host to host: only if a superuser has allowed it, as hosts then listen for others."""
    wanted = bool(_sources("direct_hops", fixed, session)) and _switch("direct_hops", fixed, session)
    if wanted and "direct_hops" not in fixed:  # defence: consent-to-hops
        raise InvalidParameter(
            "setting madlib_mop.direct_hops is on, but no superuser has allowed hosts to send states to each other",
            hint="A superuser: INSERT INTO madlib_mop.setting (name, value) VALUES ('direct_hops', 'on'); or RESET"
            " madlib_mop.direct_hops;",
        )
    return wanted


def _fused_training(fixed: dict[str, str], session: CallerSession) -> int:
    """Read the maximum number of configurations to train together: off, on, or a number."""
    values = []
    for where, text in _sources("fused_training", fixed, session):
        value = text.strip().lower()
        if value.isdecimal() and 2 <= int(value) <= _LARGEST_GROUP:
            values.append(int(value))
        elif value in _ON + _OFF:
            values.append(_USUAL_GROUP if value in _ON else 0)
        else:
            raise InvalidParameter(
                f"setting madlib_mop.fused_training must be off, on, or a number from 2 to {_LARGEST_GROUP}."
                f" Received: {text!r} ({where})",
                hint=_reset_hint("fused_training"),
            )
    return min(values, default=0)


def _number(name: str, fixed: dict[str, str], session: CallerSession, default: int) -> int:
    least, greatest = CALLER_SETTINGS[name]
    values = []
    for where, text in _sources(name, fixed, session):
        if not text.strip().isdecimal() or not least <= int(text) <= greatest:
            raise InvalidParameter(
                f"setting madlib_mop.{name} must be a whole number from {least} to {greatest}."
                f" Received: {text!r} ({where})",
                hint=_reset_hint(name),
            )
        values.append(int(text))
    return min(values, default=default)


def _sources(name: str, fixed: dict[str, str], session: CallerSession) -> list[tuple[str, str]]:
    """Return the source of a setting, and its value."""
    own = session.caller_setting(f"madlib_mop.{name}")
    texts = {"madlib_mop.setting": fixed.get(name), "SET madlib_mop": own}
    return [(where, text) for where, text in texts.items() if text is not None]


def _reset_hint(name: str) -> str:
    return f"RESET madlib_mop.{name}; resets it to its default, unless a row of madlib_mop.setting sets it."
