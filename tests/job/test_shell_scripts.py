"""Shell scripts that start a training, followed on their text; what is found is what bash really starts. Small stand-ins of each style."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.job.shell.expand import may_be_several, shown, why_unknown
from supervisor.job.shell.run import NotKnownError, ScriptRun, follow, shell_words

BASH = shutil.which("bash")
ENV = {"HOME": "/home/u", "GIVEN": "from outside"}
# Each starts one training; `$@` is `7 --lr 0.1`.
STYLES = {
    "plain": "python train.py --batch 8",
    "continued": "#!/bin/bash\n# a comment\npython \\\n  train.py  \\\n  --batch 8 \\\n  --name 'a b' --other \"c d\" # another\n",
    "torchrun": 'set -euo pipefail\nexport OMP_NUM_THREADS=4\nCUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node=2 train.py "$@" 2>&1 | tee log.txt\n',
    "module": "python -m torch.distributed.launch --nproc_per_node 4 --use_env train.py --batch 8 ${@:2}\n",
    "accelerate": "accelerate launch --num_processes 2 train.py $*\n",
    "deepspeed": 'deepspeed --num_gpus=2 train.py --deepspeed ds.json "${@}"\n',
    "srun": "N=${N:-4}\nsrun -n $N --ntasks-per-node=2 python -u train.py --batch $((64 / N))\n",
    "variables": "A=1\nB=\"$A 2\"\nexport C=${A}x\nOPTS=\"--x 1 --y '2'\"\npython train.py --b $B --c \"$B\" $OPTS --d ${C%x} --e ${NONE:-d e} --f \"${NONE:-d e}\"\n",
    "defaults": ': ${BATCH:=8}\n: "${DIR:=a b}"\npython train.py --batch ${BATCH} --out "$DIR" --given "$GIVEN" --n ${1:-3} --lr ${3-1} --no ${9:-}\n',
    "arrays": 'ARGS=(--x 1 --name "a b")\nARGS+=(\n  --y 2 # here\n  --z\n)\npython train.py "${ARGS[@]}" --n ${#ARGS[@]} ${ARGS[0]} "${ARGS[@]:1:2}" "$@"\n',
    "empty": 'EXTRA=()\npython train.py "${EXTRA[@]}" $NONE "$NONE" ""\n',
    "shift": 'GPUS=$1\nshift\ntorchrun --nproc_per_node=$GPUS train.py "$@"\n',
    "folder": 'cd "$(dirname "$0")/.." || exit 1\ncd sub\npython train.py --at "$PWD" --root "$(cd .. && pwd)" --name $(basename /x/y.z .z)\n',
    "conditions": 'if [ -z "$NONE" ] && [[ $1 -gt 3 ]]; then\n  BATCH=8\nelif [ "$1" = 7 ]; then\n  BATCH=9\nelse\n  BATCH=10\nfi\n[ "$1" == 7 ] && W=w || W=v\ncase "$1" in\n  1|2) C=1 ;;\n  7*) C=7 ;;\n  *) C=x ;;\nesac\n[[ $GIVEN == from* ]] && M=1\n[[ -n $1 && $W == w ]] || M=2\n[[ $1 == 7 && $W != w || -z $NONE && ! $1 == 8 ]] && M+=3\n[[ $1 == 8 || $W == v && $1 == 7 ]] && M+=4\npython train.py --batch $BATCH --w $W --c $C --m $M\n',
    "parsed": 'LR=1\nREST=()\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --lr) LR="$2"; shift 2 ;;\n    *) REST+=("$1"); shift ;;\n  esac\ndone\npython train.py --rate $LR "${REST[@]}"\n',
    "collected": 'for word in "$@"; do\n  ALL="$ALL $word"\ndone\npython train.py$ALL\n',
    "command in a variable": 'CMD="python train.py --batch 8"\nCMD="$CMD --lr 1"\necho "$CMD"\neval $CMD "$@"\n',
    "unquoted command": 'RUN="torchrun --nproc_per_node 2"\n$RUN train.py "$@"\n',
    "exec": 'exec python train.py "$@"\npython never.py\n',
    "nohup": "nohup python train.py --batch 8 > log 2>&1 &\nwait\n",
    "subshell": '(cd sub; A=2; python train.py --a $A "$@")\n',
    "group": "{ A=1; python train.py --a $A; } 2>&1 | tee log\n",
    "function beside it": 'say() {\n  local A=2\n  echo "$@"\n}\nA=1\nsay hello\npython train.py --a $A\n',
    "heredoc": "cat > conf.txt <<EOF\npython other.py\nEOF\ncat <<-'E' > two\n\tfor x in 1; do\n\tE\npython train.py\n",
    "one round": 'for SEED in 42; do\n  python train.py --seed $SEED "$@"\ndone\n',
    "quotes": "python train.py --a='b c' --d=\"e'f\" g\\ h $'i\\tj' --json '{\"k\": [1, 2]}' --dollar '$A' \"\\$A\"\n",
    "sourced": "source sub/env.sh\npython train.py --batch $BATCH\n",
    "nested": 'export BATCH=5\nHIDDEN=6\nbash sub/inner.sh --more "$@"\n',
    "prepared": "python prepare_data.py --all\npython train.py --batch 8\n",
    "same in both": "if [ -f maybe ]; then echo there; else echo not; fi\nif [ -d gone ]; then\n  python train.py --batch 8\nelse\n  python train.py --batch 8\nfi\n",
    "arithmetic": "A=4\n(( A > 3 )) && B=1\nfor (( i = 0; i < 3; i++ )); do echo $i; done\npython train.py --b $B --c $((A * 2 + 1)) --d $(( (A - 1) % 2 ))\n",
    "usage": 'if [ $# -lt 1 ]; then\n  echo "usage: $0 N"\n  exit 1\nfi\npython train.py --n $1\n',
    "exports all": "set -a\nBATCH=3\nset +a\nLATER=4\npython train.py\n",
}  # fmt: skip
INNER = {
    "sub/env.sh": "BATCH=12\n",
    "sub/inner.sh": 'python train.py --batch $BATCH --hidden "$HIDDEN" "$@"\n',
}
FAKE = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["STARTED"], "a") as file:
    print(json.dumps([[os.path.basename(sys.argv[0]), *sys.argv[1:]], os.getcwd(), os.environ.get("BATCH")]), file=file)
"""


def run(text: str, *args: str, folder: Path | None = None, env: dict[str, str] | None = None) -> ScriptRun:
    files = {"train.sh": text, **INNER}
    cwd = str(folder) if folder is not None else "/w"
    return follow(["bash", "train.sh", *args], read=files.get, env=ENV | (env or {}), cwd=cwd)


def really_started(folder: Path, text: str, *args: str) -> list[tuple[list[str], str, str | None]]:
    """What bash starts, with programs that only write down their words."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "torchrun", "accelerate", "deepspeed", "srun"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    for name in ("dirname", "basename", "cat", "tee", "nohup", "bash"):
        (programs / name).symlink_to(shutil.which(name) or name)
    work = folder / "work"
    (work / "sub").mkdir(parents=True)
    for name, inner in {"train.sh": text, **INNER}.items():
        (work / name).write_text(inner)
    env = {**ENV, "PATH": str(programs), "STARTED": str(folder / "started")}
    subprocess.run([BASH or "bash", "train.sh", *args], cwd=work, env=env, check=False, timeout=60, capture_output=True)  # fmt: skip
    return [json.loads(line) for line in (folder / "started").read_text().splitlines()]


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize("style", STYLES)
def test_what_is_found_is_what_bash_starts(style: str, tmp_path: Path) -> None:
    text = STYLES[style].replace('"$(dirname "$0")/.."', '"$(dirname "$0")"')
    words, cwd, batch = really_started(tmp_path, text, "7", "--lr", "0.1")[-1]
    training = run(text, "7", "--lr", "0.1", folder=tmp_path / "work").training
    assert list(training.words) == words
    assert training.cwd == cwd
    assert dict(training.env).get("BATCH") == batch


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("for lr in 1 2; do\n  python train.py --lr $lr\ndone\n", "train.sh:2 starts it in a loop over lr"),
        ("while true; do python train.py; done\n", "train.sh:1 starts it in a loop while true"),
        ("for lr in $(cat rates); do\n  python train.py --lr $lr\ndone\n", "train.sh:2 starts it in a loop over lr"),
        ("go() {\n  python train.py\n}\ngo\n", "train.sh:2 starts it in the function go"),
        ("python train.py --a 1\n\npython train.py --a 2\n", "train.sh starts several commands (lines 1, 3)"),
        ("python train.py\npython train.py\n", "train.sh starts it more than once (lines 1, 2)"),
        ("python train.py &\n", "train.sh:1 starts it in the background and does not wait for it"),
        ("if [ -f a ]; then\n  python train.py --a 1\nelse\n  python train.py\nfi\n", "train.sh:1 decides only at the start which command is started"),
        ("test -d x && python train.py\n", "train.sh:1 decides only at the start which command is started"),
        ("python train.py || python train.py --again\n", "train.sh:1 starts it only if the command before it fails"),
        ("docker run image python train.py\n", "train.sh:1 starts it through docker"),
        ("srun bash inner.sh\n", "train.sh:1 starts it through srun"),
        ("source gone.sh\npython train.py\n", "train.sh:1 reads gone.sh, which could not be opened"),
        ("cd $(cat where)\npython train.py\n", "train.sh:2 starts it in a folder that is not known: train.sh:1 takes what $(cat where) prints"),
        ("echo hello\n", "train.sh starts no training that is recognised"),
        ("exit 1\npython train.py\n", "train.sh:1 ends it with `exit` before a training is started"),
        ("bash gone.sh\n", "train.sh:1 starts gone.sh, which could not be read"),
        ("if true; then\npython train.py\n", "train.sh:3 lacks a 'fi'"),
        ("python train.py 'a\n", "train.sh:1 has a quote that is not closed"),
        ("python train.py --a\r\n", "train.sh has line ends of Windows, or characters that no shell takes"),
        (": ${DATA:?where}\npython train.py\n", "train.sh:1 needs DATA to be set"),
        ("bash train.sh\n", "train.sh is too long or starts too many others"),
        ('eval "$(cat cmd)"\n', "train.sh:1 evaluates what is not known: train.sh:1 takes what $(cat cmd) prints"),
        ("f() { f; }\nf\n", "train.sh:1 calls functions too deeply"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named_with_its_line(text: str, why: str) -> None:
    with pytest.raises(NotKnownError) as caught:
        run(text)
    assert caught.value.why == why


@pytest.mark.parametrize(
    "text",
    [
        "A=xxxxxxxx\nfor i in $(echo 1 2 3) 4 5 6 7 8 9 a b c d e f g h i j k l m n; do A=$A$A$A; done\npython train.py $A\n",
        'B=(x y)\nwhile [ 1 = 1 ]; do B+=("${B[@]}"); done\npython train.py\n',
        "python train.py --a ${A:-" * 300 + "}" * 300 + "\n",
        "if true; then\n" * 300 + "python train.py\n" + "fi\n" * 300,
        "(" * 5000 + "python train.py" + ")" * 5000,
        "python train.py " + "x" * 300_000,
        "f() { g; g; }\ng() { f; f; }\nf\npython train.py\n",
        "for a in 1 2 3 4 5 6 7 8 9; do for b in 1 2 3 4 5 6 7 8 9; do for c in 1 2 3 4 5 6 7 8 9; do for d in 1 2 3 4 5 6 7 8 9; do :; done; done; done; done\npython train.py\n",
    ],
    ids=["a word that doubles", "an array that doubles", "nested defaults", "nested conditions", "nested shells", "long", "recursion", "nested loops"],
)  # fmt: skip
def test_a_script_that_would_take_for_ever_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(NotKnownError):
        run(text)
    assert time.process_time() - began < 10


def test_a_variable_of_unknown_content_stays_unknown() -> None:
    text = (
        "if [ -d last ]; then\n  MORE='--resume last --batch 4'\nfi\n"
        "if [ -d gpu ]; then\n  DEVICE=cuda\nelse\n  DEVICE=cpu\nfi\n"
        "while read -r LINE; do\n  HELD=$LINE\ndone < list\n"
        'python train.py --port $RANDOM --at "$(date)" --device $DEVICE $MORE --held $HELD\n'
    )
    words = run(text).training.words
    assert [shown(word) for word in words[2:]] == [
        "--port", "$RANDOM", "--at", "$(date)", "--device", "$DEVICE", "$MORE", "--held", "$HELD",
    ]  # fmt: skip
    assert why_unknown(words[8]) == "train.sh:1 decides only at the start what MORE is"


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("nvidia-smi -L | wc -l", True),
        ("shuf -i 1-9 -n 1", True),
        ('date "+%Y%m%d-%H%M"', True),
        ("date +%F", True),
        ("date +'%F_%T'", True),
        ("date", False),
        ('date "+%F %T"', False),
        ("hostname", True),
        ("hostname -I", False),
        ("cat flags.txt", False),
        ("wc -l x | cut -d' ' -f1-9", False),
    ],
)
def test_what_a_command_prints_is_one_word_or_any_number(command: str, is_one: bool) -> None:
    words = run(f"python train.py --x $({command})\n").training.words
    assert (may_be_several(words[-1]) is None) == is_one


def test_variables_that_are_left_open_are_named() -> None:
    found = run("A=${A:-1}\n: ${B:=2}\nC=3\npython train.py --a $A --b $B --c $C --d ${1:-4}\n")
    assert found.settable == ("A", "B")
    assert run("A=${A:-1}\npython train.py --a $A\n", env={"A": "9"}).training.words[-1] == "9"


@pytest.mark.parametrize(
    ("words", "text", "is_one"),
    [
        (["bash", "train.sh"], None, True),
        (["sh", "-ex", "train.sh"], None, True),
        (["env", "A=1", "nohup", "bash", "train.sh"], None, True),
        (["bash", "-c", "python train.py"], None, True),
        (["./train"], "#!/usr/bin/env bash\n", True),
        (["./train"], "#!/usr/bin/env python3\n", False),
        (["bash"], None, False),
        (["torchrun", "train.py"], None, False),
        (["python", "train.py"], None, False),
    ],
)
def test_which_command_lines_start_a_shell_script(words: list[str], text: str | None, is_one: bool) -> None:
    assert shell_words(words, lambda _: text) == is_one


def test_a_command_behind_c_is_followed_with_its_arguments() -> None:
    words = ["bash", "-c", 'python train.py "$@"', "name", "--a", "b c"]
    assert follow(words, read=lambda _: None, env={}, cwd="/w").training.words[2:] == ("--a", "b c")


PIECES = st.sampled_from(
    ["A", "b c", "'", '"', "\\", "$A", "${A}", '"$A"', '"$@"', "$@", "$*", "${A:-x y}", '"${A:-x y}"', "$(echo q r)", "`echo s`", "--x=", " ", "  ", "#", "=", "~", "$1", "${2}", "$#", "\\ ", "''", '""', "$((1+2))", "${A%x}", "${A#b}"]
)  # fmt: skip


@pytest.mark.skipif(BASH is None, reason="no bash")
@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=6), st.sampled_from(["", "bx", "b  cx", " d "]))
def test_any_word_becomes_what_bash_makes_of_it(pieces: list[str], held: str) -> None:
    # Each word is printed behind a mark: an unbalanced quote makes both refuse.
    text = f"A='{held}'\nset -- p 'q  r'\nprintf '<%s>' train.py {''.join(pieces)}\n"
    done = subprocess.run([BASH or "bash", "-c", text], env=ENV, capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    try:
        found = run(text.replace("printf '<%s>'", "python")).training.words[1:]
    except NotKnownError:
        return
    if any(why_unknown(word) for word in found):
        return
    assert done.returncode == 0
    assert "".join(f"<{word}>" for word in found) == done.stdout
