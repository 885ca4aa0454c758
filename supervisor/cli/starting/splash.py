"""What a person sees of a start until the app is there: the dashboard's frame, and pre-flight's lines as they come."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from supervisor.cli.open_app import kept_file, look_of
from supervisor.job.redact import redact_argv
from supervisor.job.spec import EntryKind, JobSpec
from supervisor.run.records import Finding
from supervisor.views.appearance import Appearance
from supervisor.views.splash.first_look import start_scene
from supervisor.views.splash.glimpse import Glimpse
from supervisor.views.tui.saved_layout import load
from supervisor.views.wording.translate import words_in


class Curtain:
    """Falls when the app comes, or before anything is said on the usual screen.

    Args:
        glimpse: the terminal.
        spec: the job.
        appearance: how it looks.
        env: the environment.
    """

    def __init__(
        self, glimpse: Glimpse, spec: JobSpec, appearance: Appearance, env: Mapping[str, str]
    ) -> None:
        self.glimpse = glimpse
        self._spec, self._env = spec, env
        self._look, self._tr = look_of(appearance, env), words_in(appearance.spoken)
        self._kept = load(kept_file(env))
        self.found(())

    def found(self, findings: Sequence[Finding]) -> None:
        """Show what pre-flight has found so far."""
        spec = self._spec
        words = [*(["-m"] if spec.entry_kind is EntryKind.MODULE else []), spec.entry]
        command = shlex.join([*words, *redact_argv(spec.entry_args)])
        scene = start_scene(
            spec.name,
            command,
            findings,
            self._tr,
            log_more=self._kept.log_more,
            side_more=self._kept.side_more,
        )
        self.glimpse.show(scene, self._look, self._env)

    def fall(self) -> None:
        """Back to the usual screen: something is to be said there."""
        self.glimpse.leave()
