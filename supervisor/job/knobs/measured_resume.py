"""How a script resumes, as its processes showed it or a person answered it; and whether a resume was seen to happen.

What a first attempt did not load cannot be measured, so a way is *measured* only where the script loaded a checkpoint or looked for one;
a setting whose name says that it takes one is *proposed*. The restart confirms either: `resume_seen`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, assert_never

from supervisor.job.knobs.facts import FILES, MOST_PATHS, Facts, ResumeBy, ResumeProposal, Setting
from supervisor.job.spec import BY_ITSELF, NEVER, Knobs

FLAG: Final = "flag"
SELF: Final = "self"
PATH: Final = "PATH"
"""In a declared setting (``--resume=PATH``): it takes the path of the newest checkpoint."""
_SWITCH: Final = "proposed: switch"
_ANSWERED: Final = "as you answered"
_WHY: Final = {
    "measured: path_option": "its value was the checkpoint that was loaded",
    "measured: itself": "it looks for a checkpoint where it saves",
    "proposed: option": "by its name; the restart shows whether it loads",
    _SWITCH: "by its name; the restart shows whether it loads",
}


@dataclass(frozen=True, slots=True)
class ResumeWay:
    """How a script resumes, as the journal has it: the fields `resume`, `resume_setting`, `resume_how` of `batch_measured`.

    Attributes:
        resume: `FLAG`, `SELF`, or None where it is not known.
        setting: with `FLAG`, the setting as a knob is named.
        how: how certain that is, and the rule.
        candidates: settings to ask about, as `--resume-knob` takes them.
    """

    resume: str | None
    setting: str | None
    how: str
    candidates: tuple[str, ...] = ()


def resume_way(found: ResumeProposal) -> ResumeWay:
    """What is journalled of a proposal."""
    candidates = tuple(map(_declared, found.candidates))
    match found.by:
        case ResumeBy.ITSELF:
            return ResumeWay(SELF, None, "measured: itself")
        case ResumeBy.PATH_OPTION | ResumeBy.OPTION if found.setting is not None:
            is_switch = found.by is ResumeBy.OPTION and found.setting.type == "bool"
            how = "measured: path_option" if found.by is ResumeBy.PATH_OPTION else "proposed: option"
            return ResumeWay(FLAG, knob_name(found.setting), _SWITCH if is_switch else how, candidates)
        case ResumeBy.ASK | ResumeBy.UNKNOWN | ResumeBy.PATH_OPTION | ResumeBy.OPTION:
            return ResumeWay(
                None, None, "asked: several" if candidates else "asked: never_loaded", candidates
            )
        case _:
            assert_never(found.by)


def knob_name(setting: Setting) -> str:
    """A setting as a knob is named: its longest option word, ``env:NAME``, ``FILE#key``, else its name."""
    if setting.by == "env":
        return f"env:{setting.name}"
    if setting.by in FILES and setting.file is not None:
        return f"{setting.shown or setting.file}#{setting.name}"
    return max((word for word in setting.words if word.startswith("-")), key=len, default=setting.name)


def _declared(setting: Setting) -> str:
    name = knob_name(setting)
    return name if setting.type == "bool" and name.startswith("-") else f"{name}={_value(setting)}"


def _value(setting: Setting) -> str:
    return "true" if setting.type == "bool" else PATH


def with_measured_resume(knobs: Knobs, resume: str | None, setting: str | None, how: str) -> Knobs:
    """`knobs` with the way that was measured; as they are where a person or the command line says how the script resumes.

    A way that is only proposed gives way to a framework's convention, too. `resume`, `setting`, `how`: as in `ResumeWay`.
    """
    known = knobs.start is not None or knobs.self_resuming or knobs.resume_step is not None
    if resume is None or is_declared(knobs) or (known and how.startswith("proposed")):
        return knobs
    if resume == SELF:
        return _with_way(knobs, BY_ITSELF, _WHY["measured: itself"])
    switch = "" if (setting or "").startswith("-") else "true"
    value = switch if how == _SWITCH else PATH
    return _with_way(knobs, f"{setting}={value}" if value else setting or "", _WHY.get(how, how))


def is_declared(knobs: Knobs) -> bool:
    """Whether a person, or the command line itself, says how the script resumes."""
    return knobs.resume_is_set or knobs.resumes.startswith(("named", _ANSWERED))


def with_answered_resume(knobs: Knobs, answer: str) -> Knobs:
    """`knobs` with a person's answer: `BY_ITSELF`, `NEVER`, or a setting as `--resume-knob` takes it."""
    return _with_way(knobs, answer, _ANSWERED) if answer else knobs


def _with_way(knobs: Knobs, way: str, why: str) -> Knobs:
    blank = replace(
        knobs,
        resume=None,
        resume_value="auto",
        resume_path=None,
        resume_step=None,
        self_resuming=way == BY_ITSELF,
        cannot_resume=way == NEVER,
        resumes=why,
    )
    if way in {BY_ITSELF, NEVER}:
        return blank
    name, _, value = way.rpartition("=") if "=" in way else (way, "", "")
    if value == PATH:
        return replace(blank, resume_path=name)
    return replace(blank, resume=name, resume_value=value)


def resume_seen(
    facts: Facts, checkpoint: str, *, real: Callable[[str], str] = posixpath.normpath
) -> bool | None:
    """Whether an attempt loaded this checkpoint, or a part of it, before its first step; None: not known (yet).

    `real`: the path behind links, where the caller may look at the disk.
    """
    wanted = real(checkpoint)
    for path in facts.loaded:
        loaded = real(path)
        if loaded == wanted or loaded.startswith(wanted.rstrip("/") + "/"):
            return True
    has_stepped = any(rank.steps for rank in facts.ranks)
    return False if has_stepped and len(facts.loaded) < MOST_PATHS else None
