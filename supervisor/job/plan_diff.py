"""Two launches as a diff: what a restart does differently, in lines to read before it happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

from supervisor.job.knobs.places import ENV

# Differ in every attempt and mean nothing to a person.
_OWN_WORDS: Final = ("--log-dir=", "--master-port=")
_OWN_NAMES: Final = "STOKER_"


def diff_lines(
    before: Mapping[str, Any], after: Mapping[str, Any], first_values: Mapping[str, object]
) -> tuple[str, ...]:
    """The diff of two plans, as `plan.plan_as_record` makes them: "- old" and "+ new", arguments first.

    Args:
        before: the plan of the attempt that ended.
        after: the plan of the next one.
        first_values: what keys of the script's own config files hold, by the names of settings.
    """
    lines = _changed(_settings(before["argv"]), _settings(after["argv"]))
    old, new = _variables(before), _variables(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines += [f"- {name}={old[name]}"] if name in old else []
            lines += [f"+ {name}={new[name]}"] if name in new else []
    put = {**first_values, **before.get("applied", {})}
    for name, value in after.get("applied", {}).items():
        was = put.get(name)
        if str(was) != value and not name.startswith(ENV):  # variables stand above
            lines += [f"- {name} {was} (in the ranks)"] if was is not None else []
            lines.append(f"+ {name} {value} (in the ranks)")
    if copy := after.get("resume_copy"):
        for field, (was_set, is_set) in copy["values"].items():
            lines += [
                f"- {copy['source']}: {field}: {was_set}",
                f"+ {copy['source']}: {field}: {is_set} (in a copy)",
            ]
    return tuple(lines)


def _settings(argv: Sequence[str]) -> list[str]:
    """The words, a flag and its value as one."""
    found: list[str] = []
    open_flag = False
    for word in argv:
        if word.startswith(_OWN_WORDS):
            open_flag = False
        elif open_flag and not word.startswith("-"):
            found[-1] += f" {word}"
            open_flag = False
        else:
            found.append(word)
            open_flag = word.startswith("-") and "=" not in word
    return found


def _changed(before: list[str], after: list[str]) -> list[str]:
    lines: list[str] = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag != "equal":
            lines += [f"- {word}" for word in before[a:b]] + [f"+ {word}" for word in after[c:d]]
    return lines


def _variables(plan: Mapping[str, Any]) -> dict[str, str]:
    return {
        change["name"]: str(change["value"])
        for change in plan["env"]
        if not change["name"].startswith(_OWN_NAMES) and change["value"] is not None
    }
