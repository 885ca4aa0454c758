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
    before: Mapping[str, Any], after: Mapping[str, Any], first_values: Mapping[str, Mapping[str, object]]
) -> tuple[str, ...]:
    """The diff of two plans, as `plan.plan_as_record` makes them: "- old" and "+ new", arguments first.

    Args:
        before: the plan of the attempt that ended.
        after: the plan of the next one.
        first_values: values of the scripts' own config files, by file and dotted key.
    """
    copies = {edit["copy"] for plan in (before, after) for edit in plan.get("edits", ())}
    lines = _changed(_settings(before["argv"], copies), _settings(after["argv"], copies))
    old, new = _variables(before), _variables(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            lines += [f"- {name}={old[name]}"] if name in old else []
            lines += [f"+ {name}={new[name]}"] if name in new else []
    was = {edit["source"]: edit["values"] for edit in before.get("edits", ())}
    for edit in after.get("edits", ()):
        source = edit["source"]
        for key, value in edit["values"].items():
            shown = key.removeprefix("+")  # a key that the file did not have
            present = was.get(source, {}).get(key, first_values.get(source, {}).get(key))
            if str(present) != value:
                lines += [f"- {source}: {shown}: {present}"] if present is not None else []
                lines.append(f"+ {source}: {shown}: {value}")
    put = before.get("applied", {})
    for name, value in after.get("applied", {}).items():
        if put.get(name) != value and not name.startswith(ENV):  # variables stand above
            lines += [f"- {name} {put[name]} (in the ranks)"] if name in put else []
            lines.append(f"+ {name} {value} (in the ranks)")
    if copy := after.get("resume_copy"):
        for field, (was_set, is_set) in copy["values"].items():
            lines += [
                f"- {copy['source']}: {field}: {was_set}",
                f"+ {copy['source']}: {field}: {is_set} (in a copy)",
            ]
    return tuple(lines)


def _settings(argv: Sequence[str], copies: set[str]) -> list[str]:
    """The words, a flag and its value as one; a copy of a config file stands for the file."""
    found: list[str] = []
    open_flag = False
    for word in argv:
        if word.startswith(_OWN_WORDS):
            open_flag = False
            continue
        name, equals, value = word.partition("=")
        if word in copies or (equals and value in copies):
            word = f"{name}=CONFIG" if equals else "CONFIG"  # noqa: PLW2901 - the same word, made comparable
        if open_flag and not word.startswith("-"):
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
            gone, come = before[a:b], after[c:d]
            # A file that became its copy is told by its values.
            gone = _without_files(gone, [word for word in come if "CONFIG" in word])
            lines += [f"- {word}" for word in gone] + [f"+ {word}" for word in come if "CONFIG" not in word]
    return lines


def _without_files(words: list[str], copies: list[str]) -> list[str]:
    """The words without those whose files stand as copies among the new ones: each is found by its flag, or as it has none."""
    kept = list(words)
    for copy in copies:
        flag = copy.partition("CONFIG")[0]
        mine = (word for word in kept if (word.startswith(flag) if flag else not word.startswith("-")))
        if (word := next(mine, None)) is not None:
            kept.remove(word)
    return kept


def _variables(plan: Mapping[str, Any]) -> dict[str, str]:
    return {
        change["name"]: str(change["value"])
        for change in plan["env"]
        if not change["name"].startswith(_OWN_NAMES) and change["value"] is not None
    }
