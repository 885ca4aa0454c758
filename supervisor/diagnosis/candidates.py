"""Turns hits into root candidates: drops quoted code and echoes, and uses frames and words to choose the class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from supervisor.diagnosis.scan.frames import (
    below_its_frame,
    class_by_frames,
    end_of_chain,
    frames_above,
    in_helper,
    is_quoted_code,
    last_exception_after,
    raised_by_instrument,
    was_handled,
)
from supervisor.diagnosis.scan.log_timeline import day_of, is_progress, when
from supervisor.diagnosis.scan.matched_lines import (
    Candidate,
    Hit,
    SourceScan,
    best_match,
    is_echo,
    is_logged_as_warning,
)
from supervisor.diagnosis.scan.signature_tables import WARNING_COSTS, Role, Strength, Trait
from supervisor.diagnosis.vocabulary import ENOUGH, class_by_words
from supervisor.run.failures import FailureClass, Reason
from supervisor.text.patterns import Lazy

_WARNING_LEVEL = Lazy(r"(?:^|[\s\[|:])W\d{3,4} \d\d:\d\d:\d\d\.\d+ \d+ (?!torch/distributed/elastic)")
# A line with this ending tells what was done instead, whatever its level.
REPLACED = Lazy(
    r"(?:going to|using) \S.{0,40} instead\W*$|(?:^|[^t] )(?:skipp(?:ing|ed)|ignor(?:ing|ed)|using (?:the )?defaults?|fall(?:ing|s) back|fallback|retrying|will retry|continuing)\b.{0,24}$"
)
# wandb uploads in its own process and logs the server's refusals; if one ends the program, it is raised (`CommError`).
_OF_UPLOADER = Lazy(r"^wandb: ERROR (?:Error while calling W&B API|.{0,40}\(<Response \[\d+\]>\))")
_ENDS = Lazy(r"\b(?:ending|stopp(?:ing|ed)|abort(?:ing|ed)|exiting|terminat(?:ing|ed)|giving up)\b")
_OWN_NAME = Lazy(r"\w+(?=: |:?$)")
# Whatever the function does, its source is wrong.
_OF_SOURCE = Lazy(r"\b(?:Name|UnboundLocal)Error\b|got an unexpected keyword argument")
_OWN_TYPE = Lazy(r"\b(?:Key|Type|Attribute|Index|Name|UnboundLocal)Error\b")
# nbclient, nbconvert and papermill raise these with the cell's own traceback as message.
_OF_CELL = Lazy(r"\b(?:CellExecution|PapermillExecution)Error\b")
INFORMS = Lazy(r"(?:^|[\s\[(|:-])INFO(?:$|[\s\])|:-])")

# Types that are raised for anything; other types (KeyError, TypeError …) are the program's own.
_ANY_TYPE = Lazy(
    r"\b(?:ValueError|AssertionError|NotImplementedError|FloatingPointError|MisconfigurationException)\b"
)

# The strength of a plain exception whose class comes from frames, from words, or from neither.
FRAMES_STRENGTH = Strength.DECISIVE
WORDS_STRENGTH = 55
UNREAD_STRENGTH = 50
# The same inside a data worker: by words, and for a path missing from the start.
WORKER_WORDS_STRENGTH = 74
WORKER_PATH_STRENGTH = 78
# A score of words that outweighs the frames.
CLEAR_WORDS = ENOUGH + 1
_READS_FRAMES = frozenset((Trait.GENERIC, Trait.FRAMES_REQUIRED, Trait.COMPILER_FRAMES))
# An end from outside raises nothing in the process.
_NOT_RAISED = frozenset((FailureClass.WORKER_CRASH, FailureClass.TERMINATED))
# Failures in a data worker that keep their own class: the remedy is not in the data.
_KEPT_IN_WORKER = frozenset(
    (
        FailureClass.FD_LIMIT, FailureClass.SHM_EXHAUSTED, FailureClass.HOST_OOM, FailureClass.DISK_FULL,
        FailureClass.CUDA_OOM, FailureClass.CUDA_ERROR, FailureClass.GPU_FAULT, FailureClass.IMPORT_ERROR,
        FailureClass.PERMISSION_DENIED, FailureClass.AUTH_OR_HUB,
    )
)  # fmt: skip


class _Settled(NamedTuple):
    """Class, reason and strength of a hit, and the line that shows them; `in_helper`: raised by a thread that ends alone."""

    failure: FailureClass
    reason: Reason | None
    strength: int
    line: int
    text: str
    in_helper: bool = False


def steps_seen(scans: Sequence[SourceScan]) -> bool:
    """Whether any log shows lines of training itself."""
    return any(scan.drew_bars or scan.steps for scan in scans)


def candidates_of(scans: Sequence[SourceScan], *, stepped: bool) -> list[Candidate]:
    """All candidates of a job, log by log. `stepped`: the result of `steps_seen`."""
    made = []
    for scan in scans:
        informs = _all_informed(scan)
        made += [_candidate(hit, scans, stepped, informs=informs) for hit in _best_matches(scan)]
    return _without_context([item for item in made if item is not None])


def _without_context(found: list[Candidate]) -> list[Candidate]:
    """Drop exceptions that led to another one in the same chain, which ended the process.

    A plain exception explains less than the one before it, for example when a full disk breaks a file being
    closed; but the program can do without an import whose failure was handled.
    """
    raised = {(item.source, item.hit.line): item for item in found if item.is_cause and not item.soft}
    chained = ((item, raised.get((item.source, end_of_chain(item.hit) or 0))) for item in found)
    return [
        item
        for item, last in chained
        if last is None or last.failure is item.failure or not _explains(last, item)
    ]


def _explains(last: Candidate, item: Candidate) -> bool:
    """Whether the last exception of a chain is more than a plain one, or the only result of a failed import."""
    if last.failure is not FailureClass.CODE_ERROR:
        return True
    tried = not any("direct cause" in line for line in item.lines_until(last.line))
    return tried and item.failure is FailureClass.IMPORT_ERROR


def _best_matches(scan: SourceScan) -> Iterator[Hit]:
    """For each text, its best hit. A collector's record of a whole traceback is a line of many texts."""
    by_text: dict[tuple[int, str], list[Hit]] = {}
    for hit in scan.hits:
        by_text.setdefault((hit.line, hit.text), []).append(hit)
    for place in sorted(by_text, key=lambda place: place[0]):
        best = best_match(by_text[place])
        if best is not None:
            yield best


def _all_informed(scan: SourceScan) -> bool:
    """Whether every line has the label INFO. A log collector put it there, so it says nothing about the line."""
    lines = [line for line in (*scan.head[:40], *scan.tail[-40:]) if line.strip()]
    return bool(lines) and all(INFORMS.search(line[:120]) for line in lines)


def _candidate(hit: Hit, scans: Sequence[SourceScan], stepped: bool, *, informs: bool) -> Candidate | None:
    if is_quoted_code(hit.text) or below_its_frame(hit) or is_echo(hit):
        return None
    if _is_wrapper(hit, scans):
        return None
    if hit.has(Trait.NOT_BELOW_SPAWN) and any(
        "multiprocessing/spawn.py" in line for line in hit.lines_before(12)
    ):
        return None  # the parent was gone while its child was starting
    if hit.has(Trait.ENDS_TRACEBACK) and (was_handled(hit) or frames_above(hit).ignored):
        return None
    if (hit.signature.failure is FailureClass.CODE_ERROR or hit.has(Trait.LOST_CONNECTION)) and frames_above(
        hit
    ).in_passing:
        return None  # a message was not formatted; if it could not be written, a full disk shows up itself
    settled = _settled(hit, scans, stepped)
    soft = _is_soft(hit, settled, informs=informs)
    is_cause = hit.signature.role is Role.CAUSE
    if settled.failure is FailureClass.CODE_ERROR and raised_by_instrument(frames_above(hit), hit.text):
        settled = settled._replace(reason=Reason.INSTRUMENT)
    # Within one log the order of lines is enough, except between a peer's complaint and a timeout.
    stamp = _stamp(hit, scans) if len(scans) > 1 or not is_cause else None
    return Candidate(
        settled.failure,
        settled.reason,
        settled.strength - (WARNING_COSTS if soft else 0),
        is_cause,
        hit,
        settled.line,
        settled.text,
        stamp if stamp is not None else float("nan"),
        soft,
    )


def _is_wrapper(hit: Hit, scans: Sequence[SourceScan]) -> bool:
    """Whether a replica's or notebook cell's report, or an exception with a traceback as its message, wraps a line below with its own signature."""
    if _OF_CELL.search(hit.text):
        return any(
            hit.line < other.line and other.signature.role is Role.CAUSE for other in scans[hit.source].hits
        )
    quotes = hit.text.endswith(": Traceback (most recent call last):")
    if not quotes and (" in replica " not in hit.text or "Caught " not in hit.text):
        return False
    inner = last_exception_after(hit)
    return inner is not None and any(other.line == hit.line + inner[0] for other in scans[hit.source].hits)


def _settled(hit: Hit, scans: Sequence[SourceScan], stepped: bool) -> _Settled:
    """The class of a hit: its signature's, unless the wrapped exception, frames or words show another."""
    signature = hit.signature
    plain = _Settled(signature.failure, signature.reason, signature.strength, hit.line, hit.text)
    if hit.has(Trait.WRAPS_INNER):
        inner = last_exception_after(hit)
        return plain if inner is None else _in_worker(hit.line + inner[0], inner[1], hit, scans, stepped)
    if signature.traits & _READS_FRAMES:
        return _by_frames_or_words(hit, plain)._replace(in_helper=in_helper(hit))
    if hit.has(Trait.PIPE_OWNER):
        owner = _pipe_owner(hit)
        return plain._replace(failure=owner or plain.failure, in_helper=owner is None and in_helper(hit))
    if plain.failure is FailureClass.DISK_FULL:
        # Locks and arenas of multiprocessing are in /dev/shm (`man sem_overview`).
        frames = frames_above(hit).frames
        if frames and "/multiprocessing/" in frames[-1].path:
            return plain._replace(failure=FailureClass.SHM_EXHAUSTED, reason=None)
    return plain


def _by_frames_or_words(hit: Hit, plain: _Settled) -> _Settled:
    """A plain exception's class: clear words first, then frames, then other words."""
    by_frames = None if _OF_SOURCE.search(hit.text) else class_by_frames(frames_above(hit), hit.text)
    by_words = _class_of_words(hit)
    if by_words is not None and (by_frames is None or by_words[1] >= CLEAR_WORDS):
        return plain._replace(failure=by_words[0], strength=max(plain.strength, WORDS_STRENGTH))
    if by_frames is not None and not (
        hit.has(Trait.COMPILER_FRAMES) and by_frames is not FailureClass.COMPILE_ERROR
    ):
        return plain._replace(failure=by_frames, strength=max(plain.strength, FRAMES_STRENGTH))
    if hit.has(Trait.FRAMES_REQUIRED):
        return plain._replace(failure=FailureClass.CODE_ERROR, strength=UNREAD_STRENGTH)
    return plain


def _class_of_words(hit: Hit) -> tuple[FailureClass, int] | None:
    """The class from a plain exception's words, and their score. The program's own exception types have no such words."""
    if not hit.has(Trait.GENERIC) or _OWN_TYPE.search(hit.text):
        return None
    if not hit.has(Trait.OPEN_TYPE) and not _ANY_TYPE.search(hit.text):
        return None
    if not hit.has(Trait.ENDS_TRACEBACK):
        return class_by_words(hit.text)
    found = class_by_words(_OWN_NAME.sub("", hit.text))  # a program may name its own classes anything
    return None if found is not None and found[0] in _NOT_RAISED else found


def _in_worker(line: int, text: str, hit: Hit, scans: Sequence[SourceScan], stepped: bool) -> _Settled:
    """The class of an exception in a data worker, by the given line: some keep their own class there."""
    inner = best_match(other for other in scans[hit.source].hits if other.line == line)
    if inner is not None and inner.signature.failure in _KEPT_IN_WORKER:
        found = inner.signature
        return _Settled(found.failure, found.reason, max(found.strength, Strength.FULL), line, text)
    by_words = class_by_words(text, enough=CLEAR_WORDS)
    if by_words is not None and by_words[0] in _KEPT_IN_WORKER:
        return _Settled(by_words[0], None, WORKER_WORDS_STRENGTH, line, text)
    if "FileNotFoundError" in text or "Errno 2]" in text:
        # One missing sample in the middle of an epoch is the data's fault; from the start, the path is wrong.
        before = [*scans[hit.source].head[: hit.line], *hit.lines_before(60)]
        if not (stepped and any(is_progress(line) for line in before)):
            return _Settled(FailureClass.MISSING_FILE, None, WORKER_PATH_STRENGTH, line, text)
    return _Settled(FailureClass.DATALOADER_WORKER, Reason.RAISED, hit.signature.strength, line, text)


def _is_soft(hit: Hit, settled: _Settled, *, informs: bool) -> bool:
    """Whether the line is a warning or a notice. `informs`: a collector put INFO before each line."""
    if hit.has(Trait.FIRM) or (hit.has(Trait.FIRM_WHEN_ENDING) and _ENDS.search(hit.text)):
        return False
    text = INFORMS.sub(" ", hit.text) if informs else hit.text
    return (
        settled.in_helper
        or (hit.has(Trait.ENDS_TRACEBACK) and frames_above(hit).logged)
        or _WARNING_LEVEL.search(text) is not None
        or _OF_UPLOADER.match(text) is not None
        or is_logged_as_warning(text)
        or REPLACED.search(text[-80:]) is not None
    )


def _pipe_owner(hit: Hit) -> FailureClass | None:
    """The owner of a broken pipe that only Python's own processes used: a data worker, or the program."""
    paths = [frame.path for frame in frames_above(hit).frames]
    if not any("/multiprocessing/" in path for path in paths):
        return None
    pickled = any("ForkingPickler" in line for line in hit.lines_before(3))
    if pickled or any("torch/utils/data/" in path for path in paths):
        return FailureClass.DATALOADER_WORKER
    return FailureClass.CODE_ERROR


def _stamp(hit: Hit, scans: Sequence[SourceScan]) -> float | None:
    """The time of a line, or of the nearest line with one."""
    day_t = day_of(line for scan in scans for line in (*scan.head[:100], *scan.tail[-50:]))
    near = (hit.text, *reversed(hit.lines_before(40)), *hit.lines_after(12))
    return next((stamp for line in near if (stamp := when(line, day_t)) is not None), None)


def in_order(found: list[Candidate]) -> list[Candidate]:
    """Sort candidates in the job's order: by lines within one log, by time stamps across logs if all have them."""
    sources = {item.hit.source for item in found}
    stamped = [item for item in found if item.order == item.order]
    if len(sources) > 1 and len(stamped) == len(found):
        return sorted(found, key=lambda item: (item.order, item.hit.source, item.line))
    return sorted(found, key=lambda item: (item.hit.source, item.line))
