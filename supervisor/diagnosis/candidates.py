"""Hits turned into candidates for the root: quoted code, advice and recovered troubles fall away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from supervisor.diagnosis.claims import GENERIC, is_echo, speaker
from supervisor.diagnosis.exits import Launch
from supervisor.diagnosis.scan import Hit, SourceScan
from supervisor.diagnosis.tables import Role
from supervisor.diagnosis.timeline import is_progress, went_on, when
from supervisor.diagnosis.tracebacks import (
    class_by_frames,
    frames_above,
    is_quoted_code,
    last_exception_after,
)
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy
from supervisor.text.prefixes import split_prefix

_SOFT = Lazy(
    r"(?:^|[\s\[|:])(?:W\d{3,4} |WARN(?:ING)?\b|Warning:|INFO\b|DEBUG\b|NOTICE\b)|\[W(?:\d{3,4})? |\wWarning: |\bretry(?:ing)?\b|\busing (?:a |an |the )?(?:random|default|previous|next|another|replacement|dummy|empty|local|cached)\b|[Ff]alling back|[Ss]kipping|[Ii]gnor(?:ed|ing)|Exception ignored in|attempt \d+"
)
_WARNING_LEVEL = Lazy(r"(?:^|[\s\[|:])W\d{3,4} \d\d:\d\d:\d\d\.\d+ \d+ (?!torch/distributed/elastic)")
# A line that ends so tells of what was done instead, whatever its level.
_REPLACED = Lazy(
    r"(?:^|[^t] )(?:skipp(?:ing|ed)|ignor(?:ing|ed)|using (?:the )?defaults?|fall(?:ing|s) back|fallback|retrying|will retry|continuing)\b.{0,24}$"
)
_NOT_SOFT = Lazy(r"NCCL WARN|ERROR|CRITICAL|FATAL|Error:|slurmstepd: error|death signal")


_ENDS = Lazy(r"\b(?:ending|stopp(?:ing|ed)|abort(?:ing|ed)|exiting|terminat(?:ing|ed)|giving up)\b")
_OWN_TYPE = Lazy(r"\b(?:Key|Type|Attribute|Index|Name|UnboundLocal)Error\b")


class Candidate(NamedTuple):
    """A line that may be the root. `order` is its place in the job's time; `line` may differ from the hit's own."""

    failure: FailureClass
    reason: Reason | None
    strength: int
    is_cause: bool
    hit: Hit
    line: int
    text: str
    order: float
    soft: bool
    signature: str


def gather(scans: Sequence[SourceScan], launch: Launch, *, failed: bool = False) -> list[Candidate]:
    """All candidates of a job, in its order. `failed`: the launcher is known to have ended badly."""
    raw: list[tuple[Hit, list[Hit]]] = []
    for scan in scans:
        # A collector's record of a whole traceback is one line of many texts.
        by_line: dict[tuple[int, str], list[Hit]] = {}
        for hit in scan.hits:
            by_line.setdefault((hit.line, hit.text), []).append(hit)
        for place in sorted(by_line, key=lambda place: place[0]):
            best = speaker(by_line[place])
            if best is not None:
                raw.append((best, by_line[place]))
    years = [year for scan in scans for year in [_year(scan)] if year]
    year = years[0] if years else 2000
    steps_seen = any(is_progress(line) for scan in scans for line in scan.edges())
    labelled = {source for source, scan in enumerate(scans) if _all_informed(scan)}
    found = [
        item
        for hit, _ in raw
        if (item := _candidate(hit, scans, year, steps_seen, labelled=hit.source in labelled)) is not None
    ]
    died = failed or any(item.code != 0 for item in launch.exits)
    steps = [_tail_steps(scan) for scan in scans]
    found = _few(found)
    if not died and _launcher_is_content(scans):
        found = [item for item in found if not _outlived_elsewhere(item, scans)]
    found = [
        item
        for item in found
        if not _recovered(item, scans, steps[item.hit.source], died)
        and not _outlived(item, found, steps[item.hit.source])
    ]
    found = [item for item in found if not (item.is_cause and is_talk(item) and _passed_by(item, found))]
    found = _plain_lines_after_exceptions(found)
    if (
        not died
        and not _trouble(scans)
        and not any(_EXCEPTION.match(item.text) and not item.soft for item in found)
    ):
        found = [item for item in found if not (is_talk(item) and (steps_seen or _talked_on(item)))]
    return ordered(found)


def _year(scan: SourceScan) -> int | None:
    from supervisor.diagnosis.timeline import year_of

    year = year_of((*scan.head[:100], *scan.tail[-50:]))
    return None if year == 2000 else year


def _all_informed(scan: SourceScan) -> bool:
    """Whether each line bears the label INFO: then a collector gave it, and it says nothing of the line."""
    lines = [line for line in (*scan.head[:40], *scan.tail[-40:]) if line.strip()]
    return bool(lines) and all(_INFORMS.search(line[:120]) for line in lines)


def _candidate(
    hit: Hit, scans: Sequence[SourceScan], year: int, steps_seen: bool, *, labelled: bool = False
) -> Candidate | None:
    text = hit.text
    signature = hit.signature
    if is_quoted_code(text):
        return None
    if is_echo(hit):
        return None
    failure, reason, strength = signature.failure, signature.reason, signature.strength
    line, shown = hit.line, text
    if signature.id == "dl-worker-caught":
        inner = last_exception_after(hit)
        if inner is not None:
            line, shown = hit.line + inner[0], inner[1]
            from supervisor.diagnosis.spoken import worker_cause

            failure, reason, strength = worker_cause(line, shown, hit, scans, steps_seen, strength)
    elif signature.id in GENERIC or signature.id in {"ckpt-oserror22", "missing-file-errno"}:
        by_frames = class_by_frames(frames_above(hit), text)
        spoken = _spoken(hit)
        if spoken is not None and (by_frames is None or spoken[1]):
            failure, strength = spoken[0], max(strength, 55)
        elif by_frames is not None and not (
            signature.id == "missing-file-errno" and by_frames is not FailureClass.COMPILE_ERROR
        ):
            failure, strength = by_frames, max(strength, 70)
        elif signature.id == "ckpt-oserror22":
            failure, strength = FailureClass.CODE_ERROR, 50
    if signature.id == "ckpt-pickle" and any(
        "multiprocessing/spawn.py" in line for line in hit.lines_before(12)
    ):
        return None
    said = _INFORMS.sub(" ", text) if labelled else text
    soft = (
        bool(_WARNING_LEVEL.search(said))
        or (bool(_SOFT.search(said)) and not _NOT_SOFT.search(said))
        or bool(_REPLACED.search(said[-80:]))
    )
    # A scale that fell to nothing is told by a line that speaks of one more skipped step, an end by a warning.
    soft = soft and signature.id != "nan-scale" and not (signature.id == "nan-stop" and _ENDS.search(text))
    is_cause = signature.role is Role.CAUSE
    # Within one log the lines' order is enough, but for the time between a peer's complaint and a timeout.
    stamp = _stamp(hit, year) if len(scans) > 1 or not is_cause else None
    return Candidate(
        failure, reason, strength - (30 if soft else 0), is_cause, hit, line, shown,
        stamp if stamp is not None else float("nan"), soft, signature.id,
    )  # fmt: skip


def _spoken(hit: Hit) -> tuple[FailureClass, bool] | None:
    """The class that a plain exception's words lead to, and whether they are clear. A KeyError has no such words."""
    if hit.signature.id not in GENERIC or _OWN_TYPE.search(hit.text):
        return None
    from supervisor.diagnosis.spoken import SAID_CLEARLY, by_words  # 2 ms that other logs need not pay

    found = by_words(hit)
    return (found[0], found[1] >= SAID_CLEARLY) if found is not None else None


def _stamp(hit: Hit, year: int) -> float | None:
    stamp = when(hit.text, year)
    if stamp is not None:
        return stamp
    for line in reversed(hit.lines_before(40)):
        if (stamp := when(line, year)) is not None:
            return stamp
    for line in hit.lines_after(12):
        if (stamp := when(line, year)) is not None:
            return stamp
    return None


def _trouble(scans: Sequence[SourceScan]) -> bool:
    """Whether any log tells of a traceback or of a process that ended."""
    ids = ("traceback-head", "launch-", "crash-", "silent-death")
    return any(hit.signature.id.startswith(ids) for scan in scans for hit in scan.hits)


def is_talk(item: Candidate) -> bool:
    """A line about a class that shows itself as an exception, which is none and raises no alarm: a notice."""
    return (
        (item.failure in _TOLD_BY_EXCEPTION or item.failure in _RAISED_TOO)
        and not _EXCEPTION.match(item.text)
        and not _ALARM.search(item.text)
    )


_INFORMS = Lazy(r"(?:^|[\s\[(|:-])INFO(?:$|[\s\])|:-])")


def _talked_on(item: Candidate) -> bool:
    """Whether the program went on to inform of other things: a start that has not come to its first step yet."""
    return sum(1 for line in item.hit.lines_after() if _INFORMS.search(line[:200])) >= 2


def _passed_by(notice: Candidate, found: Sequence[Candidate]) -> bool:
    """Whether the program logged other things between a notice and the exception that it died of."""
    raised = [
        item.line
        for item in found
        if item.is_cause
        and item.hit.source == notice.hit.source
        and item.line > notice.line
        and not is_talk(item)
    ]
    if not raised:
        return False
    between = notice.hit.lines_after()[: max(raised[0] - notice.line - 1, 0)]
    return (
        sum(1 for line in between if not _ALARM.search(line) and when(split_prefix(line)[1]) is not None) >= 2
    )


_RAISED_TOO = frozenset(
    (FailureClass.CUDA_OOM, FailureClass.FD_LIMIT, FailureClass.COMPILE_ERROR, FailureClass.PORT_IN_USE)
)
_TOLD_BY_EXCEPTION = frozenset(
    (
        FailureClass.AUTH_OR_HUB, FailureClass.IMPORT_ERROR, FailureClass.CUDA_UNAVAILABLE, FailureClass.CODE_ERROR,
        FailureClass.MISSING_FILE, FailureClass.PERMISSION_DENIED, FailureClass.CHECKPOINT_LOAD,
    )
)  # fmt: skip
_ALARM = Lazy(r"\b(?:ERROR|CRITICAL|FATAL|Traceback|[Ee]rror:|NCCL WARN|[Uu]nhandled exception)")
_EXCEPTION = Lazy(
    r"^(?:\S{0,40} )?(?:(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failure|NotFound)\b|(?:[a-z_]\w*\.){2,}[A-Z]\w+: )"
)


def _plain_lines_after_exceptions(found: list[Candidate]) -> list[Candidate]:
    """Of one class, an exception speaks before a logged line or a warning about the same trouble."""
    raised = {item.failure for item in found if item.is_cause and _EXCEPTION.match(item.text)}
    return [
        item for item in found
        if item.failure not in _TOLD_BY_EXCEPTION or item.failure not in raised or _EXCEPTION.match(item.text) or not item.is_cause
        or item.hit.text.startswith(("\t", "  ")) or item.strength >= 90
    ]  # fmt: skip


MOST_OF_A_KIND = 24


def _few(found: list[Candidate]) -> list[Candidate]:
    """Of one signature and rank, the first two dozen and the last: more of the same tell nothing."""
    by_kind: dict[tuple[str, int | None, int], list[Candidate]] = {}
    for item in found:
        by_kind.setdefault((item.signature, item.hit.origin.rank, item.hit.source), []).append(item)
    kept = {id(item) for kind in by_kind.values() for item in (*kind[:MOST_OF_A_KIND], kind[-1])}
    return [item for item in found if id(item) in kept]


def _tail_steps(scan: SourceScan) -> list[tuple[int, str]]:
    """Training's own lines in the tail, with their numbers: looked for once, asked often."""
    return [(scan.tail_line + row, line) for row, line in enumerate(scan.tail) if is_progress(line)]


def _recovered(
    item: Candidate, scans: Sequence[SourceScan], steps: list[tuple[int, str]], died: bool
) -> bool:
    """Whether training went on after it, or the run came to a good end."""
    hit = item.hit
    scan = scans[hit.source]
    if item.failure is FailureClass.HANG:
        return False
    if ends_well(scan, item.line):
        return True
    after = _after(item, scan, steps)
    mine = [line for line in after if _speaks_with(line, item)]
    if item.signature.startswith("host-oom-k") or item.failure is FailureClass.GPU_FAULT:
        return went_on(mine, need=12)
    if item.failure is FailureClass.TERMINATED:
        return went_on(mine, need=3 if "SIGUSR" in item.text else 25)
    if (
        not died
        and item.failure in _TOLD_BY_EXCEPTION
        and not _EXCEPTION.match(item.text)
        and not _ALARM.search(item.text)
    ):
        return went_on(mine, need=1)
    if not died and len(mine) < len(after) and went_on(after, need=12):
        # Ranks step together: where the others went on for long, this one did too.
        return True
    if item.soft or not frames_above(hit).found:
        return went_on(mine, need=3) and not _dies_soon(hit)
    # A traceback in a job that died: logs put together file by file show a rank's earlier steps after it.
    return went_on(mine, need=60 if died else 6) and not _dies_soon(hit)


_LAUNCHERS_LOG = Lazy(r"(?:console|agent|launch\w*|torchrun|nohup|slurm)[^/\\]*$|\.out$")


def _launcher_is_content(scans: Sequence[SourceScan]) -> bool:
    """Whether logs of ranks stand beside a launcher's own, and that tells of no process that ended."""
    ranked = [scan.origin.rank is not None or scan.origin.local_rank is not None for scan in scans]
    launchers = [
        scan
        for scan, is_ranks in zip(scans, ranked, strict=True)
        if not is_ranks and _LAUNCHERS_LOG.search(scan.path)
    ]
    return (
        any(ranked)
        and bool(launchers)
        and not any(
            hit.signature.id.startswith(("launch-", "crash-", "agent-death", "signal-exception"))
            for scan in scans
            for hit in scan.hits
        )
    )


def _outlived_elsewhere(item: Candidate, scans: Sequence[SourceScan]) -> bool:
    """Whether training went on in another stream of the ranks, under a launcher that has no complaint.

    A launcher reports each process that fails, and ranks step together; files of their own tell no order.
    """
    return any(
        went_on(scan.tail, need=3)
        for source, scan in enumerate(scans)
        if source != item.hit.source and (scan.origin.rank is not None or scan.origin.local_rank is not None)
    )


def _outlived(item: Candidate, found: Sequence[Candidate], steps: list[tuple[int, str]]) -> bool:
    """Whether training went on between it and a later cause of the same voice: then that one is what it died of."""
    if not item.is_cause or item.failure is FailureClass.TERMINATED or item.strength >= 95:
        return False
    rank = item.hit.origin.rank
    later = [
        other.line
        for other in found
        if other.is_cause
        and other.hit.source == item.hit.source
        and other.line > item.line
        and (rank is None or other.hit.origin.rank in {None, rank})
        and other.failure is not FailureClass.TERMINATED
    ]
    last = max(later, default=0)
    between = {line[:200] for number, line in steps if item.line < number < last and _speaks_with(line, item)}
    return len(between) >= 6


def _after(item: Candidate, scan: SourceScan, steps: list[tuple[int, str]]) -> list[str]:
    """Lines after it that may be training's own: those close by, and the tail's."""
    if item.line >= scan.tail_line:
        return [line for number, line in steps if number > item.line]
    return [*item.hit.lines_after(150)[item.line - item.hit.line :], *(line for _, line in steps)]


def _speaks_with(line: str, item: Candidate) -> bool:
    """Whether a later line could come from the process that failed: with ranks told apart, only its own count."""
    rank = item.hit.origin.rank
    if rank is None or not line.startswith("[rank"):
        return True
    return line.startswith(f"[rank{rank}]")


def _dies_soon(hit: Hit) -> bool:
    words = (
        "failed (exitcode:",
        "ChildFailedError",
        "Sending process",
        "Killing subprocess",
        "exits with return code",
        "Exited with exit code",
    )
    return any(word in line for line in hit.lines_after(40) for word in words)


def ends_well(scan: SourceScan, after_line: int) -> bool:
    """Whether the log tells of a good end after a line, and of no death after that."""
    good = [hit.line for hit in scan.hits if hit.signature.id == "end-success" and hit.line > after_line]
    if not good:
        return False
    bad = [
        hit.line for hit in scan.hits
        if hit.line > after_line
        and hit.signature.id in {"launch-exit", "launch-summary", "launch-deepspeed", "launch-srun-exit", "launch-shell-exit", "crash-lightning-child"}
    ]  # fmt: skip
    closing = [hit for hit in scan.hits if hit.line in set(good)]
    if all("Total training time" in hit.text or "Process group destroyed" in hit.text for hit in closing):
        return False
    return not bad or max(bad) < min(good)


def ordered(found: list[Candidate]) -> list[Candidate]:
    """Put candidates in the job's order: by lines within one log, by time stamps across logs where all have them."""
    sources = {item.hit.source for item in found}
    stamped = [item for item in found if item.order == item.order]
    if len(sources) > 1 and len(stamped) == len(found):
        return sorted(found, key=lambda item: (item.order, item.hit.source, item.line))
    return sorted(found, key=lambda item: (item.hit.source, item.line))
