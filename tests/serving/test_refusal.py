from gshard_nmt.serving.refusal import Refusal


def test_a_refusal_is_a_status_and_a_message():
    refusal = Refusal(503, "busy", 7)
    assert (refusal.status, refusal.message, refusal.retry_after) == (503, "busy", 7)
    assert str(refusal) == "busy"
    assert Refusal(400, "wrong").retry_after == 0
