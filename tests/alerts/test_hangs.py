"""JobHung and JobSlowedByGpu on a hundred generated jobs, at a real Prometheus."""

from __future__ import annotations

from bench import hangs


def test_jobs_that_hang_or_are_slowed_are_named_and_healthy_ones_are_not() -> None:
    found, quiet_hours = hangs.measure()
    assert set(found) == {hangs.HUNG, hangs.SLOWED}
    assert quiet_hours > 300, "healthy jobs are what false alarms are about"
    for alert, score in found.items():
        assert score.right + score.missed == 30, alert
        assert score.precision >= 0.95, (alert, score.errors)
        assert score.recall >= 0.9, (alert, score.errors)


def test_a_wrong_name_and_a_late_one_count_against_a_rule() -> None:
    hung = next(tape for tape in hangs.tapes(hangs.TAPES, hangs.SEED) if tape.kind == "all wait")
    quiet = next(tape for tape in hangs.tapes(hangs.TAPES, hangs.SEED) if not tape.alert)
    job = next(iter(hung.truth))

    def counted(after_s: float, **also: object) -> tuple[int, int, int]:
        named = {hung.number: {hangs.HUNG: {job: hung.begins_s + after_s}}, **({quiet.number: also} if also else {})}
        score = hangs.scores([hung, quiet], named)[hangs.HUNG]
        return score.right, score.wrong, score.missed

    assert counted(100) == (1, 0, 0)
    assert counted(130) == (0, 0, 1), "two minutes"
    assert counted(-20) == (0, 1, 1), "before it began"
    assert counted(100, JobHung={("job-0", ""): 500.0}) == (1, 1, 0)
