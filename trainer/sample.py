"""``python -m trainer sample``: text from a checkpoint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, NoReturn

import torch
from torch import Tensor

from trainer.checkpoint.storage import CheckpointError, load, one_of, tokenizer_of, weights_of
from trainer.config import DataError
from trainer.data.tokenizer import Tokenizer, known
from trainer.loop import Hook, StepReport, TrainState
from trainer.model.language_model import LanguageModel, Shape, model_of

SAMPLE_TOKENS: Final = 80  # of a sample during a training


@torch.inference_mode()
def tokens_after(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    count: int,
    temperature: float,
    top_k: int,
    generator: torch.Generator,
) -> Iterator[int]:
    """`count` tokens that may follow `prompt`, drawn one after another.

    Args:
        model: in eval mode.
        prompt: at least one token.
        count: how many.
        temperature: of the softmax; 0: the likeliest token each time.
        top_k: only so many of the likeliest tokens are drawn from; 0: all.
        generator: on the CPU.
    """
    seen, place = list(prompt), model.embed.weight.device
    for _ in range(count):
        window = torch.tensor([seen[-model.shape.max_seq_len :]], device=place)
        logits: Tensor = model(window)[0, -1].cpu()
        token = _drawn(logits, temperature, top_k, generator)
        seen.append(token)
        yield token


def _drawn(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if 0 < top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    shares = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(shares, 1, generator=generator))


def open_model(path: Path, *, ema: bool = False) -> tuple[LanguageModel, Tokenizer]:
    """The model of a checkpoint, or of the newest one of a folder, ready to sample from, and what its tokens stand for.

    Raises:
        CheckpointError: it cannot be used.
        DataError: what its tokens stand for is not known.
    """
    loaded = load(one_of(path))
    try:
        shape = Shape(**loaded.meta["shape"])
    except (KeyError, TypeError):
        raise CheckpointError(f"checkpoint {loaded.path} does not say its model's shape") from None
    tokenizer = known(shape.vocab_size, tokenizer_of(loaded.path))
    if tokenizer is None:
        raise DataError(
            f"checkpoint {loaded.path}: its vocabulary of {shape.vocab_size} is not that of bytes (256), "
            "and no tokenizer was saved with it"
        )
    model = model_of(shape)
    model.load_state_dict(dict(weights_of(loaded, ema=ema)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), tokenizer


def main(argv: Sequence[str]) -> int:
    """Prints a sample after the prompt, as it is drawn. Returns: 0, 1 for a checkpoint that cannot be used, 2 for bad input."""
    parser = _Parser(prog=f"python -m {__package__} sample", description="Text from a checkpoint.")
    parser.add_argument("path", type=Path, help="a checkpoint, or a folder of them (the newest is taken)")
    parser.add_argument("--prompt", default="\n", help="what the text begins with")
    parser.add_argument("--tokens", type=int, default=300, help="how many to draw")
    parser.add_argument("--temperature", type=float, default=0.8, help="0: the likeliest each time")
    parser.add_argument("--top_k", "--top-k", type=int, default=50, help="drawn from so many; 0: from all")
    parser.add_argument("--seed", type=int, default=1337)
    parser.add_argument("--ema", action="store_true", help="the averaged weights, if there are some")
    chosen = parser.parse_args(argv)
    if chosen.temperature < 0 or chosen.tokens < 1 or chosen.top_k < 0 or not chosen.prompt:
        parser.error("--temperature and --top_k are at least 0, --tokens at least 1, --prompt is not empty")
    if any("\ud800" <= character <= "\udfff" for character in chosen.prompt):
        parser.error("--prompt is not UTF-8 text")
    try:
        model, tokenizer = open_model(chosen.path, ema=chosen.ema)
    except (CheckpointError, DataError) as error:
        sys.stderr.write(f"trainer sample: {error}\n")
        return 1
    generator = torch.Generator().manual_seed(chosen.seed)
    drawn = tokens_after(
        model,
        tokenizer.encode(chosen.prompt),
        count=chosen.tokens,
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        generator=generator,
    )
    sys.stdout.write(chosen.prompt)
    for text in shown(drawn, tokenizer):
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def shown(tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of tokens, as they come. What a model writes is data: nothing of it acts on the terminal."""
    text = tokenizer.text()
    for token in tokens:
        yield _harmless(text.after(token))
    yield _harmless(text.rest())


def _harmless(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


class SampleHook(Hook):
    """A sample every `every` steps, on one line. It runs the model: where that is split over ranks, all of them have this hook."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        autocast: Callable[[], AbstractContextManager[None]],
        say: Callable[[str], None],
        *,
        every: int,
    ) -> None:
        self._model, self._tokenizer, self._autocast, self._say = model, tokenizer, autocast, say
        self._every = every

    def after_step(self, _state: TrainState, report: StepReport, /) -> None:
        """Draws, if this step is due; the training's own random numbers stay as they are."""
        if report.step % self._every:
            return
        self._model.eval()
        # Each drawn token makes the text longer by one: the compiler would be called for it again and again.
        stance = getattr(torch.compiler, "set_stance", None)  # since torch 2.6
        with self._autocast(), stance("force_eager") if stance else nullcontext():
            drawn = tokens_after(
                self._model,
                self._tokenizer.encode("\n"),
                count=SAMPLE_TOKENS,
                temperature=0.8,
                top_k=50,
                generator=torch.Generator().manual_seed(report.step),
            )
            text = "".join(shown(drawn, self._tokenizer))
        self._model.train()
        self._say(f"sample at step {report.step}: {text.strip()!r}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"trainer sample: {message}; {self.prog} --help\n")
