"""``python -m trainer.data prepare|check``: make token files, and say what is wrong with data files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from trainer.config import DataError
from trainer.data import checkdata
from trainer.data.text import all_documents, prepare
from trainer.data.tokenizer import BYTE_VOCABULARY, Bytes, Tokenizer, opened, trained

CORPUS_BYTES: Final = 64 << 20
MOST_PAIRS: Final = 1 << 20


def main(argv: Sequence[str]) -> int:
    """``python -m trainer.data prepare|check``. Returns: 0, or 2 for what cannot be read or is at fault."""
    parser = _Parser(prog=f"python -m {__package__}", description="Make and check token files.")
    verbs = parser.add_subparsers(dest="verb", required=True, parser_class=_Parser)
    verb = verbs.add_parser("prepare", help="write train.bin and val.bin")
    verb.add_argument(
        "sources",
        nargs="*",
        help=".txt, .jsonl (also .gz), .parquet or folders of them, a saved Hugging Face dataset; none: Python's own source",
    )
    verb.add_argument("--out", type=Path, required=True, help="folder for train.bin and val.bin")
    verb.add_argument("--field", default="text", help="the text's key in JSON lines, or its column")
    verb.add_argument("--val_share", "--val-share", type=float, default=0.05, help="share for validation")
    verb.add_argument(
        "--tokenizer",
        default="bytes",
        help="bytes; bpe: byte pairs, trained on the sources; or a tokenizer.json (extra bpe) [bytes]",
    )
    verb.add_argument(
        "--vocab_size", "--vocab-size", type=int, default=8192, help="tokens that bpe makes at most [8192]"
    )
    verb = verbs.add_parser("check", help="say what is wrong with data files")
    verb.add_argument("paths", nargs="+", help=".bin, .jsonl or text files, or folders of them")
    verb.add_argument("--vocab_size", "--vocab-size", type=int, default=0, help="token ids must lie below it")
    verb.add_argument("--data_dtype", "--data-dtype", default="auto", choices=["auto", "uint16", "uint32"])
    verb.add_argument("--max_seq_len", "--max-seq-len", type=int, default=0, help="tokens of a sample")
    verb.add_argument("--field", default="text", help="the text's key in JSON lines")
    chosen = parser.parse_args(argv)
    if chosen.verb == "check":
        return checkdata.run(
            chosen.paths,
            vocab_size=chosen.vocab_size,
            dtype=chosen.data_dtype,
            length=chosen.max_seq_len,
            text_key=chosen.field,
        )
    if not 0 < chosen.val_share < 1:
        parser.error("--val_share is a share between 0 and 1")
    if not BYTE_VOCABULARY < chosen.vocab_size <= MOST_PAIRS:
        parser.error(f"--vocab_size is above {BYTE_VOCABULARY} (the bytes) and at most {MOST_PAIRS}")

    def texts() -> Iterable[Iterable[bytes]]:
        if chosen.sources:
            return all_documents(chosen.sources, chosen.field)
        from trainer.data.textfile import embedded  # numpy, which a check does not need

        return [(embedded(CORPUS_BYTES).tobytes(),)]

    tokenizer: Tokenizer
    try:
        match chosen.tokenizer:
            case "bytes":
                tokenizer = Bytes()
            case "bpe":
                tokenizer = trained(texts(), chosen.vocab_size)
            case path:
                tokenizer = opened(Path(path))
        sources = chosen.sources or ["Python's own source"]
        print(prepare(texts(), chosen.out, tokenizer, sources=sources, val_share=chosen.val_share))
    except (DataError, OSError) as error:
        sys.stderr.write(f"{__package__}: {error}\n")
        return 2
    return 0


class _Parser(argparse.ArgumentParser):
    """Bad input is one line; --help has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{__package__}: {message}; {self.prog} --help\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
