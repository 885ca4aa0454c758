"""docs/gpu-unverified.md names every line of the trainer that only a GPU reaches, and every test of `make gpu`."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu-unverified.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+\.py)` \| `(.+?)` \|", PAGE, re.MULTILINE)
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
    assert tests == set(re.findall(r"^\| `(test_\w+)` \|", PAGE, re.MULTILINE))
