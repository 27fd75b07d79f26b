"""A wait spins for a short time before it sleeps, if that helps."""

import pytest
from mop_backend import spinning
from mop_backend.spinning import SPIN_S, Spinner


class Peer:
    """A poll object for a peer that answers each wait after a fixed time, with a clock of its own."""

    def __init__(self, monkeypatch, answers_after_s):
        self.now_s = self.spun_s = self._asked_s = 0.0
        self.sleeps = 0
        self._answers_after_s = answers_after_s
        monkeypatch.setattr(spinning.time, "monotonic", lambda: self.now_s)

    def wait(self, spinner):
        self._asked_s = self.now_s
        assert spinner.poll(self, 1000) == [(0, 1)]

    def poll(self, timeout_ms):
        if timeout_ms:
            self.sleeps += 1
            self.now_s = self._asked_s + self._answers_after_s
        else:
            self.now_s += 1e-6
            self.spun_s += 1e-6
        return [(0, 1)] if self.now_s >= self._asked_s + self._answers_after_s else []


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    """Set the number of processors to two; a test may reduce it."""
    processors = {0, 1}
    monkeypatch.setattr(spinning, "processors", lambda: len(processors))
    return processors


def test_an_answer_within_microseconds_is_met_without_sleep(monkeypatch):
    peer, spinner = Peer(monkeypatch, 50e-6), Spinner()
    for _ in range(100):
        peer.wait(spinner)
    assert peer.sleeps == 0


def test_one_wait_spins_for_no_longer_than_its_bound(monkeypatch):
    peer = Peer(monkeypatch, 3600.0)
    peer.wait(Spinner())
    assert peer.sleeps == 1 and peer.spun_s <= 2 * SPIN_S


def test_a_peer_that_works_for_long_costs_next_to_nothing(monkeypatch):
    peer, spinner = Peer(monkeypatch, 2 * SPIN_S), Spinner()
    for _ in range(1000):
        peer.wait(spinner)
    assert peer.sleeps == 1000 and peer.spun_s < 25 * SPIN_S


def test_spinning_comes_back_when_answers_are_quick_again(monkeypatch):
    spinner = Spinner()
    slow = Peer(monkeypatch, 1.0)
    for _ in range(1000):
        slow.wait(spinner)
    quick = Peer(monkeypatch, 50e-6)
    for _ in range(100):
        quick.wait(spinner)
    assert 0 < quick.sleeps <= 64


def test_one_processor_is_left_to_the_peer(monkeypatch, processors):
    processors.remove(1)
    peer, spinner = Peer(monkeypatch, 50e-6), Spinner()
    peer.wait(spinner)
    assert (peer.sleeps, peer.spun_s) == (1, 0)
