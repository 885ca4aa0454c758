"""What a program that a shell script starts is: a training, another script, or neither."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Final

from supervisor.job.arguments.launchers import LAUNCHERS, read_launch
from supervisor.job.shell.started import NotKnownError

SHELLS: Final = frozenset({"bash", "sh", "dash"})
# Words before a command that start it as it is.
_BEFORE: Final = frozenset({"nohup", "exec", "command", "builtin", "time", "setsid", "env"})
_NO_TRAINING: Final = re.compile(
    r"(^|[_.-])(pre_?proc\w*|prepare\w*|make|build|download\w*|convert\w*|merge\w*|export\w*|plot\w*|eval\w*|test\w*|infer\w*|predict\w*|score\w*|analy[sz]\w*"
    r"|extract\w*|tokeniz\w*|split\w*|average\w*|upload\w*|demo|serve|decode\w*|visuali[sz]\w*|benchmark\w*|summar\w*|collect\w*|check\w*|get|setup|install\w*)"
    r"([_.-]|$)",
    re.IGNORECASE,
)
_TRAINS: Final = re.compile(r"train|tun(e|ing)|(^|[_.-])fit([_.-]|$)", re.IGNORECASE)
_TRAINING_VERBS: Final = frozenset({"train", "sft", "fit", "pretrain", "finetune", "fine-tune", "pt", "dpo"})
# Modules that are no training.
_TOOLS: Final = frozenset({"pip", "venv", "http", "json", "zipfile", "wandb", "site", "ensurepip", "compileall", "nltk", "spacy", "pytest", "unittest", "build", "ipykernel", "tensorboard"})  # fmt: skip
# Those of them that leave the files which they name as they are.
ONLY_READ: Final = frozenset({"echo", "printf", "cat", "ls", "grep", "egrep", "head", "tail", "wc", "test", "mkdir", "diff", "du", "less"})  # fmt: skip
# Programs whose words name files, and that start none of them.
_HARMLESS: Final = frozenset(
    {
        "echo", "printf", "cat", "cp", "mv", "rm", "ls", "ln", "mkdir", "touch", "chmod", "grep", "egrep", "sed", "awk", "head", "tail", "tee", "wc", "sort",
        "git", "wget", "curl", "tar", "unzip", "gunzip", "find", "kill", "pkill", "killall", "ps", "which", "type", "sleep", "pip", "pip3", "diff", "du", "md5sum",
        "rsync", "scp", "aws", "gsutil", "rclone", "vi", "vim", "less", "module", "conda", "ulimit", "umask", "alias", "trap", "hash", "logger", "wandb", "huggingface-cli",
        "black", "ruff", "isort", "flake8", "mypy", "pylint", "pytest", "nvidia-smi", "bc", "expr", "seq", "date", "hostname",
    }
)  # fmt: skip
_PROGRAMS: Final = frozenset({"docker", "singularity", "apptainer", "sbatch", "ssh", "ray", "parallel", "xargs", "tmux", "screen", "python", "python3", "make", "bazel"})  # fmt: skip
_SHELL_START: Final = re.compile(
    r"(activate|bashrc|(bash_)?profile|conda\.sh|mamba\.sh|setvars\.sh|virtualenvwrapper\.sh)$|^/etc/|^/opt/|^/usr/"
)
_SHEBANG: Final = re.compile(r"#!\s*\S*?/?(?:env\s+(?:-S\s+)?)?(\w+)(?:\s|$)")


def shell_arguments(words: Sequence[str]) -> tuple[str, str | None, list[str]]:
    """Of ``bash -x train.sh 8`` the script and its arguments; of ``bash -c TEXT`` the text."""
    at = 1
    while at < len(words) and words[at].startswith(("-", "+")) and words[at] != "-":
        word = words[at]
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            text = words[at + 1] if at + 1 < len(words) else ""
            return (words[at + 2] if at + 2 < len(words) else "bash"), text, list(words[at + 3 :])
        at += 2 if word in {"-o", "+o", "--rcfile", "--init-file"} else 1
    if at >= len(words):
        raise NotKnownError("a shell without a script is started")
    return words[at], None, list(words[at + 1 :])


def shell_options(words: Sequence[str], text: str | None) -> frozenset[str]:
    """The options of ``set`` that a shell is started with, by its flags or a script's first line."""
    if posixpath.basename(words[0]) not in SHELLS:
        words = (text or "").partition("\n")[0].removeprefix("#!").split()[1:]
    return frozenset(name for word, name in pairwise(words) if word.startswith("-") and word.endswith("o"))


def is_script(name: str, text: str | None) -> bool:
    """Whether a file that is started by its name is a shell script."""
    if text is not None and text.startswith("#!"):
        found = _SHEBANG.match(text)
        return found is not None and found[1] in SHELLS
    return text is not None and name.endswith((".sh", ".bash"))


def unwrapped(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """A command without ``env A=b``, ``nohup`` and their like, and the variables that they set."""
    rest, env = list(words), []
    while rest and rest[0] in _BEFORE and len(rest) > 1:
        name = rest.pop(0)
        while name == "env" and rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
            key, _, value = rest.pop(0).partition("=")
            env.append((key, value))
        if rest and rest[0].startswith("-"):
            return tuple(words), ()
    return tuple(rest), tuple(env)


def is_login_file(name: str) -> bool:
    """Whether a file that is read into the shell sets up an environment, and nothing of a training."""
    return _SHELL_START.search(name) is not None


class Judged(Enum):
    """What a program is; ASIDE: one of the project's that prepares or evaluates; STARTS_OTHERS: it starts what its words name."""

    TRAINING = auto()
    ASIDE = auto()
    STARTS_OTHERS = auto()
    HARMLESS = auto()
    OTHER = auto()


def judge(words: Sequence[str]) -> Judged:
    """What the program of a command line is, by its words."""
    base = posixpath.basename(words[0])
    launch = read_launch(words)
    target = launch.script or launch.module or (launch.program if launch.launchers else None)
    if base in _HARMLESS or (launch.module or "").partition(".")[0] in _TOOLS:
        return Judged.HARMLESS
    if target is None:
        return _judge_console(base, words[1:])
    if posixpath.basename(target) in SHELLS | _HARMLESS | {"python", "python3"}:
        return Judged.STARTS_OTHERS
    last = posixpath.basename(target).removesuffix(".py") if launch.script else target.rpartition(".")[2]
    aside = _NO_TRAINING.search(last) is not None and _TRAINS.search(last) is None
    return Judged.ASIDE if aside else Judged.TRAINING


def _judge_console(base: str, args: Sequence[str]) -> Judged:
    """A program by its own name: ``fairseq-train``, ``llamafactory-cli train``, ``docker run ... python train.py``."""
    by_name = (args[:1] and args[0] in _TRAINING_VERBS) or base == "tune" or _TRAINS.search(base)
    if by_name and base not in _PROGRAMS:
        return Judged.TRAINING
    names = {posixpath.basename(word) for word in args}
    starts = any(word.endswith(".py") for word in args) or not names.isdisjoint(LAUNCHERS | SHELLS)
    return Judged.STARTS_OTHERS if starts else Judged.OTHER
