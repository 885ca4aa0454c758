"""How a script resumes, as its processes showed it or a person answered it; and whether a resume was seen to happen.

What a first attempt did not load cannot be measured, so a way is *measured* only where the script loaded a checkpoint or looked for one;
a setting whose name says that it takes one is *proposed*. The restart confirms either: `resume_seen`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.knobs.facts import FILES, MOST_CANDIDATES, MOST_PATHS, Facts, Setting
from supervisor.job.knobs.setting_names import is_resume, says_resume
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


def resume_way(facts: Facts) -> ResumeWay:
    """How the script seems to resume. A way is certain only after a restart has loaded what was saved."""
    settings = facts.settings
    if (option := next((s for s in settings if _is_loaded_from(s, facts)), None)) is not None:
        return ResumeWay(FLAG, knob_name(option), "measured: path_option")
    if facts.sought or any(path in facts.saved for path in facts.loaded):
        return ResumeWay(SELF, None, "measured: itself")
    fits = [s for s in settings if s.empty or (s.type == "bool" and says_resume(s.name))]
    fits = sorted((s for s in fits if is_resume(s.name)), key=lambda s: is_resume(s.name), reverse=True)
    candidates = tuple(map(_declared, fits[:MOST_CANDIDATES]))
    if fits and (len(fits) == 1 or is_resume(fits[0].name) > is_resume(fits[1].name)):
        how = _SWITCH if fits[0].type == "bool" else "proposed: option"
        return ResumeWay(FLAG, knob_name(fits[0]), how, candidates)
    return ResumeWay(None, None, "asked: several" if fits else "asked: never_loaded", candidates)


def _is_loaded_from(setting: Setting, facts: Facts) -> bool:
    """Whether a setting's value is the checkpoint that was loaded.

    Of a name that says nothing it may be a pretrained model's weights, or the folder that is written to.
    """
    path, says_so = setting.value, is_resume(setting.name) > 0
    if not isinstance(path, str) or not (says_so or facts.restored):
        return False
    return path in facts.loaded or (says_so and any(one.startswith(f"{path}/") for one in facts.loaded))


def knob_name(setting: Setting) -> str:
    """A setting as a knob is named: its longest option word, ``env:NAME``, ``FILE#key``, else its name."""
    if setting.by == "env":
        return f"env:{setting.name}"
    if setting.by in FILES and setting.file is not None:
        return f"{setting.shown or setting.file}#{setting.name}"
    return max((word for word in setting.words if word.startswith("-")), key=len, default=setting.name)


def _declared(setting: Setting) -> str:
    name, is_switch = knob_name(setting), setting.type == "bool"
    return name if is_switch and name.startswith("-") else f"{name}={'true' if is_switch else PATH}"


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
