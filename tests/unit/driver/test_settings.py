"""A caller's settings never exceed a superuser's row, and never choose the server that workers log in to."""

import pytest
from mop_backend.keras_backends import BackendName
from mop_backend.machine import memory_bytes

from madlib_mop.driver.session.settings import CALLER_SETTINGS, MIB, read_settings
from madlib_mop.errors import InvalidParameter


class Source:
    """A record with superusers' settings, and a session with a caller's settings."""

    def __init__(self, fixed=None, own=None):
        self._fixed, self._own = fixed or {}, own or {}

    def settings(self):
        return self._fixed

    def caller_setting(self, name):
        return self._own.get(name.removeprefix("madlib_mop."))


def read(fixed=None, own=None, n_trainers=2, use_caching=False):
    source = Source(fixed, own)
    return read_settings(source, source, n_trainers, use_caching)


def test_defaults_share_the_hosts_memory():
    settings = read(n_trainers=4)
    assert settings.trainer_memory_bytes <= max(1024 * MIB, memory_bytes() * 0.8 / 4)
    assert settings.trainer_threads == 1 and settings.sandbox and settings.worker_host == "127.0.0.1"
    assert read(use_caching=True).shard_cache_bytes > read().shard_cache_bytes > 0


@pytest.mark.parametrize(
    "fixed, own, threads",
    [
        ({}, {"trainer_threads": "3"}, 3),
        ({"trainer_threads": "2"}, {}, 2),
        ({"trainer_threads": "2"}, {"trainer_threads": "8"}, 2),
        ({"trainer_threads": "8"}, {"trainer_threads": "2"}, 2),
    ],
)
def test_the_smaller_one_counts(fixed, own, threads):
    assert read(fixed, own).trainer_threads == threads


def test_a_caller_cannot_say_where_workers_log_in_or_that_the_sandbox_is_off():
    settings = read({}, {"worker_host": "10.0.0.1", "sandbox": "off"})
    assert settings.worker_host == "127.0.0.1" and settings.sandbox
    settings = read({"worker_host": "10.0.0.1", "sandbox": "off"})
    assert settings.worker_host == "10.0.0.1" and not settings.sandbox


def test_states_go_from_host_to_host_only_if_a_superuser_has_allowed_it():
    assert not read().direct_hops and not read(own={"direct_hops": "off"}).direct_hops
    assert read({"direct_hops": "on"}).direct_hops and read({"direct_hops": "on"}, {"direct_hops": "on"}).direct_hops
    assert not read({"direct_hops": "on"}, {"direct_hops": "off"}).direct_hops
    assert not read({"direct_hops": "off"}, {"direct_hops": "on"}).direct_hops
    with pytest.raises(InvalidParameter, match="no superuser has allowed hosts to send states to each other") as raised:
        read(own={"direct_hops": "on"})
    assert "VALUES ('direct_hops', 'on')" in raised.value.hint


@pytest.mark.parametrize(
    "fixed, own, on",
    [(None, None, True), ("off", "on", False), ("on", "off", False), (None, " No", False), ("1", "yes", True)],
)
def test_features_are_kept_unless_somebody_turned_that_off(fixed, own, on):
    settings = read({"materialise_features": fixed} if fixed else {}, {"materialise_features": own} if own else {})
    assert settings.materialise_features == on == settings.trainer_start()["materialise_features"]


@pytest.mark.parametrize(
    "fixed, own, on",
    [(None, None, True), ("off", None, False), ("off", "on", False), ("on", "off", False), (None, "no", False)],
)
def test_trainers_are_shared_unless_somebody_turned_that_off(fixed, own, on):
    settings = read({"share_trainers": fixed} if fixed else {}, {"share_trainers": own} if own else {})
    assert settings.share_trainers == on
    with pytest.raises(InvalidParameter, match="must be on or off. Received: 'never' .madlib_mop.setting"):
        read({"share_trainers": "never"})


def test_a_switch_is_on_or_off():
    with pytest.raises(InvalidParameter, match="must be on or off. Received: 'maybe' .SET madlib_mop."):
        read(own={"materialise_features": "maybe"})


@pytest.mark.parametrize("name", CALLER_SETTINGS)
@pytest.mark.parametrize("value", ["", "many", "-1", "1.5", "1e3", "0x10", "²", "9" * 30, "1; DROP TABLE x", None])
@pytest.mark.parametrize("by_superuser", [True, False])
def test_what_is_no_number_in_range_is_named_with_who_set_it(name, value, by_superuser):
    least, greatest = CALLER_SETTINGS[name]
    value = str(least - 1) if value is None else value
    with pytest.raises(InvalidParameter) as caught:
        read({name: value} if by_superuser else {}, {} if by_superuser else {name: value})
    where = "madlib_mop.setting" if by_superuser else "SET madlib_mop"
    assert caught.value.message == (
        f"setting madlib_mop.{name} must be a whole number from {least} to {greatest}. Received: {value!r} ({where})"
    )
    assert caught.value.hint


@pytest.mark.parametrize(
    "own, share",
    [
        ({}, {"n_trainers": 3, "cache_divisor": 4}),
        ({"shard_cache_mb": "9"}, {"n_trainers": 3, "cache_divisor": None}),
        ({"trainer_memory_mb": "2000"}, None),
    ],
)
def test_hosts_deal_out_their_own_memory_unless_a_setting_tells(own, share):
    assert read(own=own).share_at_host(3) == share


@pytest.mark.parametrize(
    "temp_file_limit, shard_disk_mb, n_bytes",
    [
        ("-1", "9", 9 * MIB),
        (None, "9", 9 * MIB),
        ("3MB", None, 3 * MIB),
        ("3MB", "2", 2 * MIB),
        ("700kB", "9", 700 << 10),
        ("2GB", None, 2 << 30),
        ("0", "9", 0),
        ("5000", None, 5000 << 10),
    ],
)
def test_a_trainer_s_file_is_a_temporary_file_of_the_caller(temp_file_limit, shard_disk_mb, n_bytes):
    """PostgreSQL shows its limit in kB, MB, GB or TB."""
    own = {"temp_file_limit": temp_file_limit, "shard_disk_mb": shard_disk_mb}
    settings = read(own=own)
    assert settings.shard_disk_bytes == n_bytes == settings.trainer_start()["shard_disk_bytes"]
    assert settings.session_trainer_start()["shard_disk_bytes"] == 0, "it predicts, and holds no rows"


def test_a_caller_does_not_choose_the_directory_of_files(tmp_path):
    assert read(own={"shard_directory": str(tmp_path)}).shard_directory is None
    assert read({"shard_directory": str(tmp_path)}).trainer_start()["shard_directory"] == str(tmp_path)
    for path in ("relative", str(tmp_path / "none"), "/proc/version", ""):
        with pytest.raises(InvalidParameter, match="setting shard_directory must be the absolute path of a directory"):
            read({"shard_directory": path})


@pytest.mark.parametrize(
    "fixed, own, most",
    [
        (None, None, 0),
        (None, "on", 8),
        (None, "16", 16),
        ("on", None, 8),
        ("off", "on", 0),
        ("4", "on", 4),
        ("on", "no", 0),
    ],
)
def test_fused_training_is_off_unless_asked_for_and_a_superusers_row_limits_it(fixed, own, most):
    settings = read({"fused_training": fixed} if fixed else {}, {"fused_training": own} if own else {})
    assert settings.fused_training == most


@pytest.mark.parametrize("value", ["many", "65", "-1", "2.5", ""])
def test_fused_training_is_off_on_or_a_number(value):
    with pytest.raises(InvalidParameter, match="fused_training must be off, on, or a number from 2 to 64. Received: '"):
        read(own={"fused_training": value})


def test_a_backend_without_fused_training_is_refused_only_where_models_train_together(monkeypatch):
    """Calls that evaluate or predict read the same settings."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    settings = read({"fused_training": "on"}, {"backend": "torch"})
    assert settings.backend == BackendName.TORCH and settings.fused_training == 8
