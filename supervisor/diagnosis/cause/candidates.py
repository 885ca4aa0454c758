"""Hits turned into candidates for the root: quoted code and echoes fall away, frames and words settle the class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.diagnosis.attribution.log_timeline import is_progress, when
from supervisor.diagnosis.scan.hit import GENERIC, is_echo, speaker
from supervisor.diagnosis.scan.scanner import Hit, SourceScan
from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.diagnosis.scan.tracebacks import (
    below_its_frame,
    class_by_frames,
    frames_above,
    in_helper,
    is_quoted_code,
    last_exception_after,
)
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy

_SOFT = Lazy(
    r"(?:^|[\s\[|:(])(?:W\d{3,4} |[WI] (?:tensorflow|external|xla|tsl)/|WARN(?:ING)?\b|Warning:|INFO\b|DEBUG\b|NOTICE\b)|\[W(?:\d{3,4})? |\wWarning: |\bretry(?:ing)?\b|\b[Uu]sing (?:a |an |the )?(?:random|default|previous|next|another|replacement|dummy|empty|local|cached|latest cached)\b|[Ff]alling back|sending [45]\d\d\b|✅|[Ss]kipping|[Ii]gnor(?:ed|ing)|Exception ignored in|attempt \d+"
)
_WARNING_LEVEL = Lazy(r"(?:^|[\s\[|:])W\d{3,4} \d\d:\d\d:\d\d\.\d+ \d+ (?!torch/distributed/elastic)")
# A line that ends so tells of what was done instead, whatever its level.
_REPLACED = Lazy(
    r"(?:^|[^t] )(?:skipp(?:ing|ed)|ignor(?:ing|ed)|using (?:the )?defaults?|fall(?:ing|s) back|fallback|retrying|will retry|continuing)\b.{0,24}$"
)
_NOT_SOFT = Lazy(r"NCCL WARN|remainder of ranks|ERROR|CRITICAL|FATAL|Error:|slurmstepd: error|death signal")
_ENDS = Lazy(r"\b(?:ending|stopp(?:ing|ed)|abort(?:ing|ed)|exiting|terminat(?:ing|ed)|giving up)\b")
_OWN_TYPE = Lazy(r"\b(?:Key|Type|Attribute|Index|Name|UnboundLocal)Error\b")
INFORMS = Lazy(r"(?:^|[\s\[(|:-])INFO(?:$|[\s\])|:-])")

# Of one signature, rank and log.
MOST_OF_A_KIND = 24
# What a warning's strength falls behind the same line's at a higher level; what frames and words of a plain exception are worth.
SOFT_COSTS = 30
FRAMES_STRENGTH = 70
WORDS_STRENGTH = 55
UNREAD_STRENGTH = 50


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


def steps_seen(scans: Sequence[SourceScan]) -> bool:
    """Whether any log shows training's own lines."""
    return any(is_progress(line) for scan in scans for line in scan.edges())


def candidates_of(scans: Sequence[SourceScan], *, stepped: bool) -> list[Candidate]:
    """All candidates of a job, log by log. `stepped`: what `steps_seen` says."""
    years = [year for scan in scans for year in [_year(scan)] if year]
    year = years[0] if years else 2000
    labelled = {source for source, scan in enumerate(scans) if _all_informed(scan)}
    made = [
        _candidate(hit, scans, year, stepped, labelled=source in labelled)
        for source, scan in enumerate(scans)
        for hit in _speakers(scan)
    ]
    return _few([item for item in made if item is not None])


def _speakers(scan: SourceScan) -> Iterator[Hit]:
    """Of all hits in one text, the one that speaks for it. A collector's record of a whole traceback is a line of many texts."""
    by_text: dict[tuple[int, str], list[Hit]] = {}
    for hit in scan.hits:
        by_text.setdefault((hit.line, hit.text), []).append(hit)
    for place in sorted(by_text, key=lambda place: place[0]):
        best = speaker(by_text[place])
        if best is not None:
            yield best


def _year(scan: SourceScan) -> int | None:
    from supervisor.diagnosis.attribution.log_timeline import year_of

    year = year_of((*scan.head[:100], *scan.tail[-50:]))
    return None if year == 2000 else year


def _all_informed(scan: SourceScan) -> bool:
    """Whether each line bears the label INFO: then a collector gave it, and it says nothing of the line."""
    lines = [line for line in (*scan.head[:40], *scan.tail[-40:]) if line.strip()]
    return bool(lines) and all(INFORMS.search(line[:120]) for line in lines)


def _candidate(
    hit: Hit, scans: Sequence[SourceScan], year: int, stepped: bool, *, labelled: bool = False
) -> Candidate | None:
    text = hit.text
    signature = hit.signature
    if is_quoted_code(text) or below_its_frame(hit):
        return None
    if is_echo(hit):
        return None
    failure, reason, strength = signature.failure, signature.reason, signature.strength
    line, shown = hit.line, text
    helper = False
    if " in replica " in text and "Caught " in text and _inner_told(hit, scans):
        return None
    if signature.id == "dl-worker-caught":
        inner = last_exception_after(hit)
        if inner is not None:
            line, shown = hit.line + inner[0], inner[1]
            from supervisor.diagnosis.cause.message_topics import worker_cause

            failure, reason, strength = worker_cause(line, shown, hit, scans, stepped, strength)
    elif signature.id in GENERIC or signature.id in {"ckpt-oserror22", "missing-file-errno"}:
        frames = frames_above(hit)
        helper = in_helper(hit)
        by_frames = class_by_frames(frames, text)
        spoken = _spoken(hit)
        if spoken is not None and (by_frames is None or spoken[1]):
            failure, strength = spoken[0], max(strength, WORDS_STRENGTH)
        elif by_frames is not None and not (
            signature.id == "missing-file-errno" and by_frames is not FailureClass.COMPILE_ERROR
        ):
            failure, strength = by_frames, max(strength, FRAMES_STRENGTH)
        elif signature.id == "ckpt-oserror22":
            failure, strength = FailureClass.CODE_ERROR, UNREAD_STRENGTH
    elif signature.id == "peer-generic":
        failure = _other_end(hit) or failure
    elif failure is FailureClass.DISK_FULL and _in_semaphores(hit):
        failure, reason = FailureClass.SHM_EXHAUSTED, None
    if signature.id == "ckpt-pickle" and any(
        "multiprocessing/spawn.py" in line for line in hit.lines_before(12)
    ):
        return None
    said = INFORMS.sub(" ", text) if labelled else text
    soft = (
        bool(_WARNING_LEVEL.search(said))
        or (bool(_SOFT.search(said)) and not _NOT_SOFT.search(said))
        or bool(_REPLACED.search(said[-80:]))
        or helper
    )
    # A scale that fell to nothing is told by a line that speaks of one more skipped step, an end by a warning.
    soft = soft and signature.id != "nan-scale" and not (signature.id == "nan-stop" and _ENDS.search(text))
    is_cause = signature.role is Role.CAUSE
    # Within one log the lines' order is enough, but for the time between a peer's complaint and a timeout.
    stamp = _stamp(hit, year) if len(scans) > 1 or not is_cause else None
    return Candidate(
        failure, reason, strength - (SOFT_COSTS if soft else 0), is_cause, hit, line, shown,
        stamp if stamp is not None else float("nan"), soft, signature.id,
    )  # fmt: skip


def _inner_told(hit: Hit, scans: Sequence[SourceScan]) -> bool:
    """Whether the exception that a replica's report wraps is told below it by a signature of its own."""
    inner = last_exception_after(hit)
    return inner is not None and any(other.line == hit.line + inner[0] for other in scans[hit.source].hits)


def _in_semaphores(hit: Hit) -> bool:
    """Whether no space was left for a lock or an arena of multiprocessing: those lie in /dev/shm (`man sem_overview`)."""
    frames = frames_above(hit).frames
    return bool(frames) and "/multiprocessing/" in frames[-1][0].replace("\\", "/")


def _other_end(hit: Hit) -> FailureClass | None:
    """Whose pipe broke, where Python's own processes spoke over it and no ranks: a data worker's, or the program's."""
    paths = [path.replace("\\", "/") for path, _ in frames_above(hit).frames]
    if not any("/multiprocessing/" in path for path in paths):
        return None
    pickled = any("ForkingPickler" in line for line in hit.lines_before(3))
    if pickled or any("torch/utils/data/" in path for path in paths):
        return FailureClass.DATALOADER_WORKER
    return FailureClass.CODE_ERROR


def _spoken(hit: Hit) -> tuple[FailureClass, bool] | None:
    """The class that a plain exception's words lead to, and whether they are clear. A KeyError has no such words."""
    if hit.signature.id not in GENERIC or _OWN_TYPE.search(hit.text):
        return None
    from supervisor.diagnosis.cause.message_topics import (  # 2 ms that other logs need not pay
        SAID_CLEARLY,
        by_words,
    )

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


def _few(found: list[Candidate]) -> list[Candidate]:
    """Of one signature and rank, the first two dozen and the last: more of the same tell nothing."""
    by_kind: dict[tuple[str, int | None, int], list[Candidate]] = {}
    for item in found:
        by_kind.setdefault((item.signature, item.hit.origin.rank, item.hit.source), []).append(item)
    kept = {id(item) for kind in by_kind.values() for item in (*kind[:MOST_OF_A_KIND], kind[-1])}
    return [item for item in found if id(item) in kept]


def ordered(found: list[Candidate]) -> list[Candidate]:
    """Put candidates in the job's order: by lines within one log, by time stamps across logs where all have them."""
    sources = {item.hit.source for item in found}
    stamped = [item for item in found if item.order == item.order]
    if len(sources) > 1 and len(stamped) == len(found):
        return sorted(found, key=lambda item: (item.order, item.hit.source, item.line))
    return sorted(found, key=lambda item: (item.hit.source, item.line))
