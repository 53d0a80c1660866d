"""Time that a test moves on."""

from collections.abc import Callable


class FakeTime:
    """The time of a lock. It goes on only when somebody sleeps, and does something at each tick."""

    def __init__(self, at_each_tick: Callable[[], object] = lambda: None) -> None:
        self.now, self.at_each_tick = 0.0, at_each_tick

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at_each_tick()
