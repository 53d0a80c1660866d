"""Hostile requests to gshard-serve: none of them may make the answer to /health wait."""

from gshard_nmt.serve import Address, Server
from gshard_nmt.serving.requests import Limits
from tests.serving.fake_translator import DIRECTIONS, FakeTranslator
from tests.serving.hostile import LONGEST_WAIT, attack
from tests.soak.campaign import Clock, Report


def campaign(clock: Clock, seed: int) -> Report:
    """Attacks a server whose translator is a stand-in."""
    server = Server(
        FakeTranslator(), DIRECTIONS, 16, Address(port=0), Limits(), log=lambda line: None
    )
    try:
        result = attack(server.port, seed, int(min(clock.cases_left, 10**9)), clock.ends)
    finally:
        server.stop()
    wait = f"/health took at most {1000 * result.longest_wait:.0f} ms"
    defects = []
    if result.longest_wait > LONGEST_WAIT:
        defects.append(f"{wait}, during {result.slowest}")
    if unexpected := result.statuses - {200, 400, 413, 415, 429}:
        defects.append(f"answers with the statuses {sorted(unexpected)}")
    return Report(f"{result.requests} hostile requests, {wait}", defects)
