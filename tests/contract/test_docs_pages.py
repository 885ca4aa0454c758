"""Pages and schemas that must keep up with code and tests: facts, values, faults, restarts, lines for a GPU, the way to each page; and their pictures."""

from __future__ import annotations

import json
import re
import runpy
import tokenize
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from scripts import reliability_page
from supervisor.diagnosis.root_cause import Ended
from supervisor.diagnosis.scan.signature_tables import Role
from supervisor.job.batch import BatchUnit
from supervisor.job.spec import AccumulationCounts, KnobScope
from supervisor.keeper.monitoring.collector import gpu_values, machine_values, own_values
from supervisor.run import events as ev
from supervisor.run.records import Action, FailureClass, Reason
from supervisor.sources.gpu import GpuDevice, GpuSample
from supervisor.sources.machine import HostReader, ProcessSample
from supervisor.sources.processes import ProcessId
from tests.integration.matrix import MATRIX
from trainer.faults import FaultKind, parse

ROOT = Path(__file__).parents[2]
FEWEST_FAULTS = 50
PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
SHAPES = re.compile("[\u2500-\u2503\u256d-\u2570\u2580-\u259f\u2800-\u28ff]")


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in pages if f"](docs/{name})" not in readme] == []


def test_every_fact_of_a_journal_is_told() -> None:
    page = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    kinds = [kind.__struct_config__.tag for kind in ev.KINDS]
    assert [kind for kind in kinds if f"`{kind}`" not in page] == []


def test_every_value_of_gpus_ranks_and_machine_is_told() -> None:
    page = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")
    values = {
        *gpu_values(GpuSample(0.0, GpuDevice(0, None, None, None))),
        *machine_values(HostReader(disks=()).read()),
        *(sample := ProcessSample(0.0, "0", ProcessId(1, 0.0), alive=True)).values(),
        *own_values(sample),
    }
    assert sorted(name for name in values if name not in page) == []


def test_the_page_of_faults_is_made_from_the_tests() -> None:
    assert reliability_page.PAGE.read_text(encoding="utf-8") == reliability_page.page(), "run `make pages`"


def test_each_area_has_faults_and_none_is_there_twice() -> None:
    found = list(reliability_page.rows())
    assert len(found) >= FEWEST_FAULTS
    assert {row.area for row in found} == set(reliability_page.AREAS)
    assert len({(row.fault, row.promise) for row in found}) == len(found)


def test_the_page_of_restarts_is_as_the_rules_and_the_matrix_are() -> None:
    text = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "scripts" / "recovery_page.py"))
    assert made["page"](text) == text, "run scripts/recovery_page.py"
    asked = {fault.kind for case in MATRIX for fault in parse(case.fault)}
    assert asked == set(FaultKind), "every fault that can be asked for is in the matrix"
    told = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    assert all(f"`{kind}" in told for kind in FaultKind), "each is told of where the flag is explained"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_fetches_nothing_and_names_no_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    assert not re.search(r"url\(|@import|@font-face|<image|<script|https?://(?!www\.w3\.org/)", text)
    words = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert not [word for word in words if SHAPES.search(word)]
    assert not [word for word in words if "/work/" in word or "/root" in word]


GPU_PAGE = (ROOT / "docs" / "gpu-unverified.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+\.py)` \| `(.+?)` \|", GPU_PAGE, re.MULTILINE)
# Tables of settings, the pure decisions (40 described machines), and an import.
ELSEWHERE = {"config.py", "settings.py", "machine.py"}
MODULES = sorted((ROOT / "trainer").rglob("*.py"))
OF_A_GPU = re.compile(
    r"\btorch\.cuda\b|[\"']cuda[\"']|\bbackends\.cuda\b|[\"']nccl[\"']|pin_memory|is_pinned|is_cuda|rng_cuda"
)


def code_lines(path: Path) -> dict[int, str]:
    """Lines of code by number, without docstrings and comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            is_text = token.type == tokenize.STRING and token.string.startswith('"""')
            if token.type == tokenize.COMMENT or is_text:
                for number in range(token.start[0], token.end[0] + 1):
                    first = token.start[1] if number == token.start[0] else 0
                    lines[number - 1] = lines[number - 1][:first]
    return {number: line for number, line in enumerate(lines, start=1) if line.strip()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_line_for_a_gpu_is_named(path: Path) -> None:
    if path.name in ELSEWHERE:
        return
    lines = code_lines(path)
    named = [fragment for name, fragment in ROWS if name == path.name]
    missing = {
        f"{path.name}:{number}: {line.strip()}"
        for number, line in lines.items()
        if OF_A_GPU.search(line) and not any(fragment in line for fragment in named)
    }
    assert not missing
    text = "\n".join(lines.values())
    assert not [fragment for fragment in named if fragment not in text], "a line that is not there any more"


def test_every_test_of_make_gpu_is_named() -> None:
    tests = {
        name
        for path in (ROOT / "tests" / "gpu").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert tests == set(re.findall(r"^\| `(test_\w+)` \|", GPU_PAGE, re.MULTILINE))


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
