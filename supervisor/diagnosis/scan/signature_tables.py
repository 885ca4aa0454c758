r"""The signature tables: messages for each failure, as data.

**How to add a failure signature** (five minutes):

1. Append an entry to the table in `supervisor/diagnosis/signatures/` whose subject fits (`memory.toml`, `data.toml` …)::

       [[signature]]
       id = "disk-quota-bytes"             # lower-case words joined by hyphens, used once
       class = "disk_full"                 # a failure class of run/records.py
       role = "cause"                      # see `Role`
       strength = 84                       # 0 to 100, see `Strength`
       triggers = ["quota"]                # every sample contains one of these plain words
       regex = '''quota of \d+ bytes exceeded'''
       must_not = "a description of what it must not match"         # optional
       samples = ["OSError: quota of 500 bytes exceeded"]    # lines it must match, used as its test
       near_misses = ["quota of 500 bytes set"]              # lines it must not match

   Optional keys: `reason` (a `Reason` of the class), `traits` (a list, see `Trait`), `lost` (what the
   connection was lost to, for `lost_connection`). Patterns use the subset that Hyperscan, re2 and Python's
   `re` share: no lookaround, no backreferences, no possessive or named groups.
2. Add an example to `tests/corpus/data/wordings.txt`, on one line: ``class|line as the program prints it``.
3. Run ``pytest tests/diagnosis/test_signatures.py tests/corpus -m 'not e2e'`` and ``make pages``.

The test checks every table. No code refers to a signature by ID. Any property that rules need beyond class, role
and strength is a trait in the signature's table.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.run.records import FailureClass, Reason

if TYPE_CHECKING:
    from supervisor.job.spec import OwnSignature


class Role(StrEnum):
    """What a matching line means for the verdict."""

    CAUSE = "cause"  # it may be the cause of the failure
    CONSEQUENCE = (
        "consequence"  # it follows from a failure elsewhere, and is the root only if nothing else is found
    )
    CONFIRMATION = "confirmation"  # it is not a failure itself: exit codes, tracebacks' heads, good ends
    ADVICE = "advice"  # it only mentions failures, and masks any other match in the line


class Strength(IntEnum):
    """Levels of signature strength: how much a matching line proves on its own. Rules compare only against these.

    Tables may use any number from 0 to 100. A line logged as a warning or lower loses `WARNING_COSTS`.
    """

    TRACE = 20  # an event somewhere; a weaker consequence is only an echo
    HINT = 30  # a process or a connection is gone, without a reason
    COMPLAINT = 45  # the event is stated, but not its reason
    SUGGESTIVE = 48  # below it, a line is little more than a guess
    PLAIN = 60  # states a failure in words that other failures use too
    FIRM = 66  # reports a stop that was received or requested
    DECISIVE = 70  # leaves no room for a cause that only stack dumps suggest
    CLEAR = 76  # states the failure, in words that seldom mean another one
    FULL = 80  # states the failure so clearly that even a stop before it does not explain it
    CERTAIN = 88  # the library's own final message for exactly this failure
    EXACT = 90  # as good as an exception, even as a plain line
    FATAL = 95  # no process continues after it

    @property
    def word(self) -> str:
        """The lowercase name, for display."""
        return self.name.lower()


WARNING_COSTS = 30
"""How much strength a line loses if it is logged as a warning or lower."""


def strength_word(strength: int) -> str:
    """Return the name of the highest level that a strength reaches."""
    return next((level.word for level in reversed(Strength) if strength >= level), "none")


class Trait(StrEnum):
    """Signature properties that rules need beyond class, role and strength."""

    # Choice of its class.
    GENERIC = "generic"  # any Python exception: a signature that knows the message wins
    OPEN_TYPE = "open_type"  # matches exception types that no table lists: its words are never sure
    FRAMES_REQUIRED = "frames_required"  # without telling frames above it, an ordinary code error
    COMPILER_FRAMES = "compiler_frames"  # among the frames above it, only a compiler's change the class
    PIPE_OWNER = "pipe_owner"  # a broken pipe: frames of multiprocessing show its owner
    WRAPS_INNER = "wraps_inner"  # reports an exception below it, which decides class and line
    NOT_BELOW_SPAWN = (
        "not_below_spawn"  # below multiprocessing/spawn.py it only reports that the parent was gone
    )
    # Warnings and advice.
    FIRM = "firm"  # a warning level does not weaken it
    ENDS_MESSAGES = "ends_messages"  # PyTorch's closing advice: masks only lines that raise nothing
    # Source of the report.
    LAUNCHER_REPORT = "launcher_report"  # a launcher's report on its processes, from which exits are read
    CRASH_REPORT = "crash_report"  # a crash as the process itself, the shell or the kernel reports it
    SCHEDULER_REPORT = "scheduler_report"  # the scheduler's report on the job
    TASK_EXIT = "task_exit"  # gives a task or rank and its end: read as an exit
    SHELL_EXIT = "shell_exit"  # an exit status that shells and make print too: not a sign of a launcher
    BAD_END = "bad_end"  # after it, an earlier good end no longer counts
    GOOD_END = "good_end"  # training reached its end
    CLOSING_LINE = "closing_line"  # a script's last line, also printed after a failure
    JOB_START = "job_start"  # printed by a shell, a scheduler or a launcher as a job begins
    LAUNCHER_END = "launcher_end"  # the launcher itself has ended
    USAGE_EXIT = "usage_exit"  # an argument parser's last words: the program has ended
    TRACEBACK = "traceback"  # the head of a traceback
    ENDS_TRACEBACK = "ends_traceback"  # the exception below a traceback, with any class name
    ATTEMPT_RESTART = "attempt_restart"  # a launcher starts its processes again
    SIGNALS_PEERS = "signals_peers"  # lists the processes that the launcher signals
    KILLS_PEERS = "kills_peers"  # the launcher reports killing the remaining processes
    STOP_SIGNAL = "stop_signal"  # reports a SIGTERM without its sender
    OWN = "own"  # the user's own signature, from their settings: never only a notice
    # Subject of the report.
    ABORT = "abort"  # may report SIGABRT, which a process sends to itself after stating the reason
    SHELL_KILL = "shell_kill"  # a shell's "Killed"
    SIGKILL_ONLY = "sigkill_only"  # mentions SIGKILL and no reason
    MACHINE_WIDE = (
        "machine_wide"  # may be about any process of the machine: long steps after it clear the job
    )
    NAMES_TASK = "names_task"  # this line or the one right below gives the task
    STACK_DUMP = "stack_dump"  # starts the stack of a waiting process
    REPEATED = "told_again"  # a data worker's last words; the loader's own line, later, gives its pid
    LOST_CONNECTION = "lost_connection"  # a connection broke, whoever ended it; `lost` gives the peer


class Signature(NamedTuple):
    """A wording to match. `strength` (0-100) is how much a match proves on its own. `place` is its index in the set."""

    place: int
    id: str
    failure: FailureClass
    role: Role
    reason: Reason | None
    strength: int
    regex: str
    confirm: bool
    triggers: tuple[str, ...] = ()
    must_not: str = ""
    samples: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    family: str = ""
    traits: frozenset[Trait] = frozenset()
    lost: str = ""
    title: str = ""
    start: str = ""


OWN = "own-"
"""Prefix for the IDs of users' own signatures."""
# A user's own signature is certain about their logs. A consequence shows a failure, but not the first one.
_OWN_STRENGTH = {Role.CAUSE: 100, Role.CONSEQUENCE: Strength.PLAIN, Role.ADVICE: 0}


class Signatures(NamedTuple):
    """A validated set of signatures. `digest` identifies its contents, for caching."""

    entries: tuple[Signature, ...]
    digest: str


def digest_of(tables: Mapping[str, bytes]) -> str:
    """Return a content hash of the raw tables. Cheap enough to compute at every startup."""
    # The hash only distinguishes versions of the tables. Importing hashlib alone costs 2 ms.
    check = size = 0
    for name in sorted(tables):
        check = zlib.crc32(tables[name], zlib.crc32(name.encode(), check))
        size += len(tables[name])
    return f"{check:08x}-{size}"


def parse_tables(tables: Mapping[str, bytes], own: Sequence[OwnSignature] = ()) -> Signatures:
    """Parse all tables, given as raw TOML keyed by family, and add the user's own (already validated as settings).

    `tests/diagnosis/test_signatures.py` checks our tables: regular expressions that both engines support, samples, near misses.
    """
    import tomllib

    entries: list[Signature] = []
    for family in sorted(tables):
        for raw in tomllib.loads(tables[family].decode("utf-8")).get("signature", []):
            entries.append(_read(raw, family, len(entries)))
    entries += [_of_user(item, len(entries) + at) for at, item in enumerate(own)]
    return Signatures(tuple(entries), digest_of(with_own(tables, own)))


def with_own(tables: Mapping[str, bytes], own: Sequence[OwnSignature]) -> dict[str, bytes]:
    """Return the input for a digest: the tables plus the user's own signatures, if any."""
    return {**tables, OWN: repr(list(own)).encode()} if own else dict(tables)


def _of_user(own: OwnSignature, place: int) -> Signature:
    role = Role(own.role)
    return Signature(
        place=place,
        id=OWN + own.id,
        failure=FailureClass(own.failure),
        role=role,
        reason=None,
        strength=_OWN_STRENGTH[role],
        regex=own.regex,
        confirm=_needs_confirmation(own.regex),
        traits=frozenset((Trait.FIRM, Trait.OWN)),
        title=own.title,
        start=own.start,
    )


def _read(raw: Mapping[str, Any], family: str, place: int) -> Signature:
    reason = raw.get("reason")
    return Signature(
        place=place,
        id=raw["id"],
        failure=FailureClass(raw["class"]),
        role=Role(raw["role"]),
        reason=Reason(reason) if reason is not None else None,
        strength=raw["strength"],
        regex=raw["regex"],
        triggers=tuple(raw.get("triggers", ())),
        must_not=raw.get("must_not", ""),
        samples=tuple(raw["samples"]),
        near_misses=tuple(raw.get("near_misses", ())),
        family=family,
        confirm=_needs_confirmation(raw["regex"]),
        traits=frozenset(map(Trait, raw.get("traits", ()))),
        lost=raw.get("lost", ""),
        title=raw.get("title", ""),
    )


def _needs_confirmation(regex: str) -> bool:
    """Check whether the engine, which sees many lines at once, could match across lines or miss anchors."""
    return (
        "[^" in regex or "\\s" in regex or "^" in regex.replace("[^", "") or "\\W" in regex or "\\D" in regex
    )


def pack(signatures: Signatures) -> bytes:
    """Serialize the parsed set compactly, so startup can skip parsing and checking TOML. Samples and notes are omitted."""
    import json

    bare = {"triggers": (), "must_not": "", "samples": (), "near_misses": (), "family": ""}
    rows = [{**entry._asdict(), **bare} for entry in signatures.entries]
    return json.dumps([signatures.digest, rows], default=sorted).encode("utf-8")


def unpack(raw: bytes) -> Signatures:
    """Read the output of `pack`.

    Raises:
        ValueError: If the bytes are not a packed set.
    """
    import json

    try:
        digest, rows = json.loads(raw)
        entries = tuple(_unpacked(row) for row in rows)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a packed signature set: {error}") from error
    return Signatures(entries, str(digest))


def _unpacked(row: Mapping[str, Any]) -> Signature:
    return Signature(**row)._replace(
        failure=FailureClass(row["failure"]),
        role=Role(row["role"]),
        reason=Reason(row["reason"]) if row["reason"] is not None else None,
        traits=frozenset(map(Trait, row["traits"])),
    )
