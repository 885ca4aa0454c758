"""NVML without a GPU: a stand-in for libnvidia-ml.so.1 in C (nvml.c), behind the real pynvml.

What stoker says of GPUs is tested through NVML's own interface: a test describes cards, and the library, built by the system's C compiler, answers with them,
in this process and in any child that is given `StandIn.env`.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1 << 30
LIBRARY = "libnvidia-ml.so.1"
SOURCE = Path(__file__).with_name("nvml.c")
STATE = "NVML_STAND_IN"
ALL_FUNCTIONS = "*"


@dataclass
class Card:
    """One GPU. `mig`: None where the card has no such mode. `processes`: pid and bytes, None where NVML has none. `fails`: a function's name (or "*") to the error that it answers (nvml.h)."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 * GIB
    used: int = 0
    util: int = 0
    power_mw: int = 300_000
    throttle: int = 0
    ecc: int = 0
    persistence: bool = True
    mig: bool | None = None
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)


@dataclass
class StandIn:
    """The cards of this machine; what is changed is seen after `show`. `xids`: card and code of each event so far."""

    folder: Path
    cards: list[Card] = field(default_factory=list)
    xids: list[tuple[int, int]] = field(default_factory=list)
    init_code: int = 0
    gone: bool = False
    driver: str = "570.86.15"
    cuda: int = 12_080

    @property
    def env(self) -> dict[str, str]:
        """What a child needs to find these cards."""
        return {"LD_LIBRARY_PATH": str(self.folder), STATE: str(self.folder / "cards")}

    def show(self, *cards: Card) -> None:
        """Let the library know: `cards`, or those that it has with what was changed of them."""
        self.cards = list(cards) or self.cards
        lines = [f"init {self.init_code}", f"gone {int(self.gone)}", f"driver {self.driver} {self.cuda}"]
        for place, card in enumerate(self.cards):
            numbers = (card.total, card.used, card.util, card.power_mw, card.throttle, card.ecc)
            lines.append(f"card {' '.join(map(str, numbers))} {card.uuid} {card.name}")
            lines.append(f"modes {place} {int(card.persistence)} {-1 if card.mig is None else int(card.mig)}")
            lines += [f"process {place} {pid} {-1 if size is None else size}" for pid, size in card.processes]
            lines += [f"fail {place} {function} {code}" for function, code in card.fails.items()]
        lines += [f"xid {number} {card} {code}" for number, (card, code) in enumerate(self.xids, start=1)]
        new = self.folder / "cards.new"
        new.write_text("\n".join(lines) + "\n")
        new.replace(self.folder / "cards")


def build(folder: Path, *, old_driver: bool = False) -> Path | None:
    """Compile the library into a folder; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / LIBRARY
    defines = ["-DOLD_DRIVER"] if old_driver else []
    subprocess.run(
        [compiler, "-Wall", "-Werror", "-shared", "-fPIC", *defines, "-o", str(library), str(SOURCE)],
        check=True,
    )
    return library
