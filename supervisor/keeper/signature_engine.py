"""The signature engine, loaded beside the launch: compiled afresh it takes two seconds, in which torch loads too."""

from __future__ import annotations

import threading

from supervisor.sources.signature_files import Engine, default_cache_dir, load_engine


class EngineLoader:
    """Loads in a thread, from construction on or once `begin` is called; `get` waits for it."""

    def __init__(self, *, begin: bool = True) -> None:
        self._engine: Engine | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._load, name="stoker-engine")
        self._begun = False
        if begin:
            self.begin()

    def begin(self) -> None:
        """Begin to load, if that has not been begun."""
        if not self._begun:
            self._begun = True
            self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether `get` would answer at once: on a busy machine a first compile has taken 20 s."""
        return self._begun and not self._thread.is_alive()

    def get(self) -> Engine:
        """The engine. Raises what loading it raised."""
        self.begin()
        self._thread.join()
        if self._engine is None:
            raise RuntimeError("the signature tables could not be loaded") from self._error
        return self._engine

    def _load(self) -> None:
        try:
            self._engine = load_engine(default_cache_dir())
        except Exception as error:  # noqa: BLE001 - handed over to whoever asks for the engine
            self._error = error
