"""The job of a command line, with the files that it reads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from supervisor.job.arguments.run_arguments import parse_run_argv
from supervisor.job.config.files import parse_config
from supervisor.job.config.resolve import JobInputs, resolve_job
from supervisor.job.config.setting_values import ConfigFile, spec_key_names
from supervisor.job.spec import JobSpec


def job(
    line: str,
    config: str | None = None,
    *,
    env: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    gpus: int = 0,
) -> JobSpec:
    """`config`: the text of ``job.toml``, which the line names. `files`: those that can be opened, were they asked for."""
    env, read = env or {}, (files or {}).get
    parsed = parse_run_argv(shlex.split(line), env=env, spec_keys=spec_key_names())
    file = None
    if config is not None:
        file = ConfigFile("job.toml", parse_config("job.toml", config.encode()), config)
    return resolve_job(JobInputs(parsed, env, "/w", job_file=file, read=read, cpus=2, gpus=gpus))
