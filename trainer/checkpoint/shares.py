"""A checkpoint in shares: each rank of FSDP2 writes the rows that it holds, and reads those that it needs.

One file a rank, as torch.save writes it: the state with this rank's part of each tensor, and where the part lies in the whole. Another
number of ranks takes its rows out of several files, which are mapped: what a rank does not need is not read.
docs/DECISIONS.md says why it is not torch.distributed.checkpoint's own format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from trainer.model.optim import local_of, rows_of

SHARES: Final = "share-*.pt"


def share_name(rank: int) -> str:
    """The file of a rank."""
    return f"share-{rank:05d}.pt"


class Rows:
    """A tensor that lies in several files, cut by its first dimension."""

    def __init__(self, shape: Sequence[int], parts: Sequence[tuple[int, Tensor]]) -> None:
        """Args: the whole shape; parts with their first row, in order, without gaps."""
        self.shape = tuple(shape)
        self._parts = parts

    def __getitem__(self, rows: slice) -> Tensor:
        """The rows from `rows.start` to `rows.stop`."""
        found = []
        for first, part in self._parts:
            begin, end = max(rows.start - first, 0), min(rows.stop - first, len(part))
            if begin < end:
                found.append(part[begin:end])
        if len(found) == 1:
            return found[0]
        return torch.cat(found) if found else self._parts[0][1].new_empty((0, *self.shape[1:]))

    def whole(self) -> Tensor:
        """All rows."""
        return self[0 : self.shape[0]]


def share_of(held: Any, kept: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """What a rank writes; no collective.

    Args:
        held: tensors and plain values in dictionaries, split over ranks or not.
        kept: gives the copy that is written of a tensor, by its place.
    """
    places: dict[str, list[int]] = {}

    def walk(inner: Any, place: str) -> Any:
        if isinstance(inner, Mapping):
            return {key: walk(each, f"{place}/{key}") for key, each in inner.items()}
        if not isinstance(inner, Tensor):
            return inner
        if (rows := rows_of(inner)) is not None:
            places[place] = [rows.start, *inner.shape]
        return kept(place, local_of(inner))

    return {"state": walk(held, ""), "places": places}


def joined(shares: Sequence[Mapping[str, Any]], *, by_rows: bool) -> dict[str, Any]:
    """The state of all shares: tensors that were split as `Rows` (`by_rows`) or put together.

    Raises:
        KeyError, ValueError: they are not shares of one state.
    """
    places = [share["places"] for share in shares]

    def walk(inner: Sequence[Any], place: str) -> Any:
        if isinstance(inner[0], Mapping):
            return {key: walk([each[key] for each in inner], f"{place}/{key}") for key in inner[0]}
        if place not in places[0]:
            return inner[0]
        parts = sorted(
            ((at[place][0], part) for at, part in zip(places, inner, strict=True)), key=lambda pair: pair[0]
        )
        _first, *shape = places[0][place]
        if sum(len(part) for _, part in parts) != shape[0]:
            raise ValueError(f"{place} is not whole: a share is missing")
        rows = Rows(shape, parts)
        return rows if by_rows else rows.whole()

    found: dict[str, Any] = walk([share["state"] for share in shares], "")
    return found
