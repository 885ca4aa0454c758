"""What `pairs.py` needs of yacs: a tree of settings that takes a list of keys and values."""

import ast
from types import SimpleNamespace


class CfgNode(SimpleNamespace):
    def merge_from_list(self, cfg_list):
        assert len(cfg_list) % 2 == 0, f"Override list has odd length: {cfg_list}"
        for key, value in zip(cfg_list[0::2], cfg_list[1::2], strict=True):
            *path, last = key.split(".")
            node = self
            for part in path:
                node = getattr(node, part)
            assert hasattr(node, last), f"Non-existent key: {key}"
            setattr(node, last, ast.literal_eval(value))
