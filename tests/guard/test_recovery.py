from spear_hf.guard.recovery import EscalationPolicy, Snapshots


def test_a_finding_that_comes_back_soon_gets_a_harder_action() -> None:
    escalation = EscalationPolicy(memory=2)
    assert [escalation.action("drift") for _ in range(4)] == ["rollback", "reset", "fallback", "fallback"]
    for _ in range(3):
        escalation.hold_one_step()
    assert escalation.action("drift") == "rollback"


def test_a_snapshot_is_good_once_the_next_one_is_taken() -> None:
    snapshots = Snapshots(every=2)
    snapshots.take({"n": 1})
    assert snapshots.good is None
    snapshots.take({"n": 2})
    snapshots.drop()
    assert snapshots.good == {"n": 1}
