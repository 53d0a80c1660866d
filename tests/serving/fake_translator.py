"""A translator that writes lines in capitals, and that a test can hold in the middle of a batch."""

import dataclasses
import threading

DIRECTIONS = [("fr", "en"), ("de", "en"), ("zh-CN", "en"), ("fr", "de")]


@dataclasses.dataclass(frozen=True)
class Text:
    text: str
    lost: tuple[str, ...] = ()
    confidence: float | None = None


class FakeTranslator:
    """Translates "a" to "A>en", "A>en 2"; "lose" loses "%s"; while its `gate` is cleared, calls wait."""

    keeps_tags = False

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], str, str]] = []  # lines, source, target of each call
        self.confidence: float | None = None
        self.gate = threading.Event()
        self.gate.set()

    def translate(self, lines, source, target):
        self.batches.append((list(lines), source, target))
        assert self.gate.wait(20), "the test left the gate closed"
        if "fail" in lines:
            raise ValueError(f"secret text: {lines}")
        for line in lines:
            best = f"{line.upper()}>{target}"
            lost = ("%s",) if "lose" in line else ()
            yield [Text(best, lost, self.confidence), Text(f"{best} 2", lost)]
