"""Prints settings with their origins: all of a job (``--show-config``), or one with all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.cli.common import say, say_json
from supervisor.job.config.explain import Explained, Source, variables
from supervisor.job.spec import JobSpec
from supervisor.text.decode import printable
from supervisor.text.redact import redact, redact_text


def show_all(spec: JobSpec, env: Mapping[str, str], *, as_json: bool) -> int:
    """Each setting with its value and origin, then each variable that a launch changes for the job, with the reason."""
    settings = [
        (name, redact(name.removeprefix("env."), value), origin) for name, value, origin in spec.effective
    ]
    changed = [(each.name, each.sources[-1]) for each in variables(spec, env)]
    if as_json:
        told = {
            "settings": [_row(name, value, origin, _beaten(spec, name)) for name, value, origin in settings],
            "variables": [_row(each.name, each.sources[-1].value, each.sources[-1].origin, each.sources[:-1])
                          for each in variables(spec, env)],
        }  # fmt: skip
        say_json(told)
        return 0
    _print_table(settings)
    if changed:
        say("", "variables of the job:")
        _print_table([(name, _value(source), source.origin) for name, source in changed])
    return 0


def show_one(told: Explained, *, as_json: bool) -> int:
    """A setting's meaning, value and origin, then what it takes and what it overrode."""
    *beaten, now = told.sources or (Source(None, "not set"),)
    if as_json:
        facts = {"meaning": told.meaning, "takes": told.takes, "unit": told.unit, "default": told.default}
        say_json({**_row(told.name, now.value, now.origin, beaten), **facts, "other_names": told.other_names})
        return 0
    lines = [
        f"{told.name} = {_value(now)}  ({now.origin})"
        if now.value is not None or told.sources
        else f"{told.name}: not set"
    ]
    facts = {"meaning": told.meaning, "takes": told.takes, "unit": told.unit, "default": told.default}
    facts["other names"] = ", ".join(told.other_names)
    lines += [f"  {name + ':':<13}{text}" for name, text in facts.items() if text]
    lines += [
        f"  {'overrode:' if not at else '':<13}{_value(source)}  ({source.origin})"
        for at, source in enumerate(reversed(beaten))
    ]
    say(*map(redact_text, lines))
    return 0


def _beaten(spec: JobSpec, name: str) -> Sequence[Source]:
    shown = name.removeprefix("env.")
    return [Source(redact(shown, value), origin) for value, origin in spec.sources(name)[:-1]]


def _row(name: str, value: str | None, origin: str, beaten: Sequence[Source]) -> dict[str, Any]:
    overrode = [{"value": source.value, "origin": redact_text(source.origin)} for source in reversed(beaten)]
    return {"key": name, "value": value, "origin": redact_text(origin), "overrode": overrode}


def _value(source: Source) -> str:
    return "(removed)" if source.value is None else source.value


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    shown = [[*map(printable, row)] for row in rows]
    width = max((len(name) for name, _, _ in shown), default=0)
    value_width = min(max((len(value) for _, value, _ in shown), default=0), 60)
    for name, value, why in shown:
        say(f"{name:<{width}}  {value:<{value_width}}  {why}")
