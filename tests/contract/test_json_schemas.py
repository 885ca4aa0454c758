"""The values that the published schemas allow are those that the code can write: a new member of an enum must be in its page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from supervisor.diagnosis.root_cause import Ended
from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.job.batch import BatchUnit
from supervisor.job.spec import AccumulationCounts, KnobScope
from supervisor.run.records import Action, FailureClass, Reason

DOCS = Path(__file__).parents[2] / "docs"
# The only roles that a candidate for the cause has.
CANDIDATE_ROLES = (Role.CAUSE, Role.CONSEQUENCE)
# By the key that holds a value: the members that it may be, and whether it may be null.
VALUES: dict[str, dict[str, tuple[tuple[StrEnum, ...], bool]]] = {
    "diagnose.schema.json": {
        "failure": (tuple(FailureClass), False),
        "reason": (tuple(Reason), True),
        "action": (tuple(Action), False),
        "role": (CANDIDATE_ROLES, False),
        "ended": (tuple(Ended), False),
    },
    "dry-run.schema.json": {
        "unit": (tuple(BatchUnit), True),
        "scope": (tuple(KnobScope), False),
        "counts": (tuple(AccumulationCounts), True),
    },
}
# Words that no enum holds: `job.launch.oom_plan.ResumePlan` lists them.
WORDS = {"dry-run.schema.json": {"how"}}


def enums(schema: object, key: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Each list of allowed values in a schema with the key that it is for."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("enum"), list):
            yield key, schema["enum"]
        for name, part in schema.items():
            yield from enums(part, name)


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.schema.json")))
def test_a_schema_allows_what_the_code_can_write_and_no_more(name: str) -> None:
    schema = json.loads((DOCS / name).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    allowed = {key: values for key, values in enums(schema) if key not in WORDS.get(name, set())}
    assert {key: sorted(map(str, values)) for key, values in allowed.items()} == {
        key: sorted([*(member.value for member in members), *(["None"] if may_be_null else [])])
        for key, (members, may_be_null) in VALUES[name].items()
    }
