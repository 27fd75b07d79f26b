"""The signal of a run for live pages: soon after a change, at most once a second, and never without a change."""

from madlib_mop.driver.running.loop import SIGNAL_PAUSE_S, RunSignal


class Clocked:
    """A signal with a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent: list[float] = []
        self.signal = RunSignal(lambda: self.sent.append(self.now), lambda: self.now)

    def pass_by(self, seconds: float, changes_every_s: float) -> None:
        """Let time pass, with changes, as the loop over the tasks sees them."""
        end, next_change = self.now + seconds, self.now
        while self.now < end:
            if self.now >= next_change:
                self.signal.changed()
                next_change += changes_every_s
            self.signal.send_due()
            self.now += 0.01


def test_the_first_change_is_sent_at_once_and_others_after_the_pause():
    at = Clocked()
    at.signal.changed()
    assert at.signal.seconds_left == 0
    at.signal.send_due()
    at.signal.changed()
    at.signal.send_due()
    assert at.sent == [100.0] and at.signal.seconds_left == SIGNAL_PAUSE_S
    at.now += SIGNAL_PAUSE_S
    at.signal.send_due()
    assert at.sent == [100.0, 100.0 + SIGNAL_PAUSE_S]


def test_many_changes_make_one_a_second():
    at = Clocked()
    at.pass_by(10.0, changes_every_s=0.02)
    assert 9 <= len(at.sent) <= 11


def test_without_a_change_nothing_is_sent_and_the_loop_waits_as_long_as_it_likes():
    at = Clocked()
    at.signal.send_due()
    assert at.sent == [] and at.signal.seconds_left == float("inf")
