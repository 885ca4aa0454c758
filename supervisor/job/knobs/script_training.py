"""The training that a shell script starts, as a job of its own; refused where what is not known of it may matter."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from supervisor.job.arguments.launchers import LAUNCHERS, read_launch
from supervisor.job.config.edit import SUFFIXES, config_words
from supervisor.job.config.settings import Resolver
from supervisor.job.shell.expand import may_be_several, shown, why_unknown
from supervisor.job.shell.run import NotKnownError, ScriptRun, Started, follow
from supervisor.job.spec import JobSpec

Read = Callable[[str], str | None]

# Flags of launchers that say nothing of ranks.
_MEETING: Final = re.compile(r"port|addr|rdzv|node_rank|machine_rank|_ip$|log_dir|job_?name|partition|account|^-p$|^-J$")  # fmt: skip
_CONFIGS: Final = re.compile(r"conf|cfg|yaml|json|deepspeed|params", re.IGNORECASE)


@dataclass(frozen=True)
class Script:
    """The script of a job."""

    spec: JobSpec
    look: Resolver
    words: tuple[str, ...]
    read: Read

    def run(self, words: Sequence[str], more: Mapping[str, str]) -> ScriptRun:
        """What the script would start with these words and these variables more."""
        env = {**self.look.env, **dict(self.spec.env), **more}
        return follow(words, read=self.read, env=env, cwd=self.spec.cwd)

    def inside(self, training: Started, touched: frozenset[str] = frozenset()) -> JobSpec:
        """The job of the training command alone.

        Raises:
            NotKnownError: too much of it is not known.
        """
        _require_known(training)
        for name in _configs_of(training):
            if posixpath.normpath(name) in touched:
                why = (
                    f"{training.file} writes {name}, which the training reads, or hands it to another command"
                )
                raise NotKnownError(why)
        here = training.cwd.rstrip("/") + "/"
        words = [shown(word).removeprefix(here) for word in training.words]
        env = {**dict(self.spec.env), **{name: shown(value) for name, value in training.env}}
        return replace(self.spec, entry=words[0], entry_args=tuple(words[1:]), env=tuple(env.items()))


def _configs_of(training: Started) -> list[str]:
    """The configs that a command names; a JSON file behind another kind of flag is data."""
    found = []
    for at, word in enumerate(training.words):
        flag, equals, value = word.partition("=")
        name = flag if equals else training.words[at - 1] if at else ""
        for file in config_words([value if equals else word]):
            is_data = file.lower().endswith(".json") and name.startswith("-") and not _CONFIGS.search(name)
            found += [] if is_data else [file]
    return found


def _require_known(training: Started) -> None:
    """Refuses a command with unknown words that may be settings, configs, or the number of ranks."""
    launch = read_launch([shown(word) for word in training.words])
    torchrun = all("torch" in name for name in launch.launchers)
    for at, word in enumerate(training.words):
        why = may_be_several(word)
        if why is not None:
            raise NotKnownError(f"{training.at} starts it with {shown(word)}: {why}")
        if (why := why_unknown(word)) is None:
            continue
        flag, equals, _ = word.partition("=")
        name = flag if equals else training.words[at - 1] if at else ""
        own = at < launch.args_at
        risky = not torchrun and not _MEETING.search(name) if own else _CONFIGS.search(name)
        if risky or word.lower().endswith((*SUFFIXES, ".py")) or posixpath.basename(name) in LAUNCHERS:
            raise NotKnownError(f"{training.at} starts it with {shown(word)}: {why}")
