"""Earlier failures of a run: recovery times and their parts, and earlier occurrences of the same failure."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.run import events as ev
from supervisor.run.state import RunState

# Reasons to end an attempt that had already failed; the failure is then at the time of that decision.
_OURS_AFTER_A_FAILURE = frozenset({ev.StopWhy.RANK_DIED, ev.StopWhy.HANG})


def recovery_of(facts: Iterable[ev.Event], attempt: int) -> ev.Recovered | None:
    """The recovery by `attempt`; None if nothing failed before it or it has completed no step."""
    after = attempt - 1
    at: dict[str, float] = {}
    last_t = 0.0
    for fact in facts:
        last_t = max(last_t, fact.t)
        match fact:
            case ev.RunEnded():
                at.clear()  # somebody may have continued the run at any later time, which is not a recovery
            case ev.RankExited(attempt=number) if number == after:
                at.setdefault("failed", fact.t)
            case ev.StopIntended(attempt=number) if number == after and fact.why in _OURS_AFTER_A_FAILURE:
                at.setdefault("failed", fact.t)
            case ev.ProcessesGone(attempt=number) if number == after and fact.exit_code != 0:
                at.setdefault("failed", fact.t)
            case ev.AttemptEnded(attempt=number) if number == after and fact.exit_code != 0:
                at["ended"] = fact.t
                at.setdefault("failed", fact.t)
            case ev.Diagnosed(attempt=number) if number == after and not fact.provisional:
                at["diagnosed"] = fact.t
            case ev.BackoffStarted(attempt=number) if number == after:
                at["due"] = fact.until
            case ev.LaunchIntended(attempt=number) if number == attempt:
                at["planned"] = fact.t
            case ev.AttemptStarted(attempt=number) if number == attempt:
                at["started"] = fact.t
            case ev.RankStarted(attempt=number) if number == attempt and fact.pid is not None:
                at.setdefault("ranks", fact.t)
            case ev.TrainerReady(attempt=number) if number == attempt:
                at["ready"] = fact.t
            case ev.Progress(attempt=number, step=step) if number == attempt and step is not None:
                at.setdefault("stepped", fact.t)
            case _:
                continue
    if "failed" not in at or "stepped" not in at:
        return None

    def span(start: str, end: str) -> float | None:
        return round(max(at[end] - at[start], 0.0), 3) if start in at and end in at else None

    loaded = "ready" if "ready" in at else "ranks"
    return ev.Recovered(
        t=last_t,
        attempt=attempt,
        after=after,
        total_s=round(max(at["stepped"] - at["failed"], 0.0), 3),
        end_s=span("failed", "ended"),
        detect_s=span("ended", "diagnosed"),
        wait_s=span("diagnosed", "due"),
        drain_s=span("due", "planned"),
        spawn_s=span("planned", "started"),
        rendezvous_s=span("started", "ranks"),
        load_s=span("ranks", "ready"),
        first_step_s=span(loaded, "stepped"),
    )


def same_failure(state: RunState, fingerprint: str, attempt: int) -> tuple[int, ...]:
    """The other attempts of a run with the same failure."""
    return tuple(
        view.number
        for view in state.attempts
        if view.number != attempt
        and fingerprint
        and view.verdict is not None
        and view.verdict.fingerprint == fingerprint
    )


def recurrence_lines(same: tuple[int, ...]) -> list[str]:
    """The recurrence in words: one line, or none."""
    many = "s" if len(same) > 1 else ""
    return [f"the same failure as attempt{many} {', '.join(map(str, same))}"] if same else []
