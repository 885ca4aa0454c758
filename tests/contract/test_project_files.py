"""Files for those who work on stoker: the CI workflow and templates against their schemas, one version, a changelog that can be read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import supervisor
from supervisor.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
LONGEST_ENTRY = 160
RELEASED = re.compile(r"^## (\d+\.\d+\.\d+) – \d{4}-\d{2}-\d{2}$", re.MULTILINE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    return tomllib.loads(text_of("pyproject.toml"))


def steps(workflow: dict[str, Any]) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", "ISSUE_TEMPLATE/config.yml"),
    ],
)
def test_files_for_the_forge_fit_their_schemas(schema: str, pattern: str) -> None:
    files = sorted((ROOT / ".github").glob(pattern))
    assert files
    done = checked(schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_that_is_none_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"  # a checker that lets everything through would prove nothing
    broken.write_text(text_of(".github/workflows/ci.yml").replace("runs-on:", "runs_on:"), encoding="utf-8")
    assert checked("vendor.github-workflows", broken).returncode == 1


def checked(schema: str, *files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_workflow_runs_what_a_developer_runs() -> None:
    workflow = yaml.safe_load(text_of(".github/workflows/ci.yml"))
    wanted = re.search(r"^make ([a-z0-9 ]+) 2>&1", text_of(".ci/run"), re.MULTILINE)
    assert wanted is not None
    assert {f"make {target}" for target in wanted.group(1).split()} <= set(steps(workflow))
    said = re.findall(r"Python :: (3\.\d+)", text_of("pyproject.toml"))
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python-version"] == said


def test_hooks_use_the_tools_of_the_virtual_environment_alone() -> None:
    (repository,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    used = {hook["entry"].split()[0] for hook in repository["hooks"]}
    checked = re.search(r"^check:.*\n((?:\t.+\n)+)", text_of("Makefile"), re.MULTILINE)
    assert checked is not None
    assert used == {f".venv/bin/{name}" for name in re.findall(r"\$\(BIN\)/(\S+)", checked.group(1))}
    assert {hook["language"] for hook in repository["hooks"]} == {"system"}


def test_what_is_installed_for_development_is_pinned() -> None:
    found = project()["project"]
    wanted = [
        *found["dependencies"],
        *(one for group in found["optional-dependencies"].values() for one in group),
    ]
    names = {re.split(r"[^\w.-]", one)[0].lower() for one in wanted}
    pinned = {line.split("==")[0].lower() for line in text_of("constraints.txt").splitlines() if "==" in line}
    assert names - pinned == set()


def test_the_lock_holds_what_an_install_brings_with_hashes() -> None:
    locked = {
        match[1].lower(): Version(match[2])
        for match in re.finditer(r"^([\w.-]+)==(\S+)", text_of("requirements.lock"), re.MULTILINE)
    }
    assert len(re.findall(r"^[\w.-]+==", text_of("requirements.lock"), re.MULTILINE)) == len(locked)
    blocks = re.split(r"^(?=[\w.-]+==)", text_of("requirements.lock"), flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    for line in project()["project"]["dependencies"]:
        wanted = Requirement(line)
        assert locked[wanted.name.lower()] in wanted.specifier, line


def test_the_version_stands_in_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    found = project()
    assert "version" not in found["project"]
    assert "version" in found["project"]["dynamic"]
    place = found["tool"]["hatch"]["version"]["path"]
    assert Path(supervisor.__file__).read_text(encoding="utf-8") == text_of(
        place
    )  # another file in an installed wheel
    assert re.findall(r'^__version__ = "(.+)"$', text_of(place), re.MULTILINE) == [supervisor.__version__]
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"stoker {supervisor.__version__}\n"
    assert RELEASED.findall(text_of("CHANGELOG.md"))[0] == supervisor.__version__


def test_the_changelog_has_versions_and_short_lines() -> None:
    lines = text_of("CHANGELOG.md").splitlines()
    versions = [line for line in lines if line.startswith("## ")]
    assert versions[0] == "## Unreleased"
    assert [line for line in versions[1:] if not RELEASED.match(line)] == []
    kinds = {line for line in lines if line.startswith("### ")}
    assert kinds <= {
        f"### {kind}" for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
    }
    assert [line for line in lines if len(line) > LONGEST_ENTRY] == []
    assert [line for line in lines if line.startswith((" ", "\t"))] == [], "one line an entry"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_makefile_names_every_target_in_its_help() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    targets = re.search(r"^\.PHONY: (.+)$", text_of("Makefile"), re.MULTILINE)
    assert targets is not None
    inner = {"help", "venv-gpu", "clean"}
    assert [
        name for name in targets.group(1).split() if name not in inner and f"make {name}" not in done.stdout
    ] == []
