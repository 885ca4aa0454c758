"""Sentences of random words; torchtext (gone from PyPI for this torch) gets a stand-in of its three functions."""

import importlib.metadata
import os
import random
import sys

import kit


class Vocabulary(dict):
    """Numbers of words, behind torchtext's calls."""

    def __call__(self, words):
        return [self[word] for word in words]

    def set_default_index(self, index):
        pass


def build(sentences, specials=()):
    words = [*specials, *sorted({word for sentence in sentences for word in sentence})]
    return Vocabulary(zip(words, range(len(words))))


importlib.metadata.version = lambda _: "0"  # the package runs from its folder, not installed
for name in ("torchtext", "torchtext.data"):
    kit.module(name)
kit.module("torchtext.data.utils", get_tokenizer=lambda _: str.split)
kit.module("torchtext.datasets", PennTreebank=None, WikiText2=None, WikiText103=None)
kit.module("torchtext.vocab", build_vocab_from_iterator=build, Vocab=Vocabulary)
sys.path.insert(0, os.path.abspath("."))
from examples.language import dataset  # noqa: E402

random.seed(0)
text = [" ".join(random.choices([f"w{i}" for i in range(200)], k=20)) for _ in range(181)]
dataset.download_dataset = lambda *_: (text, text[:40], text[:40])
kit.run()
