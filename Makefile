# Everything a fresh machine needs: python3.11 (or newer) with venv, and make.
#   make install .venv for development; the other targets run it if needed
#   make demo    a real run: out of memory, verdict, smaller restart, finished
#   make quick   tests of the pure packages and of the contracts between packages (under a minute)
#   make wheel-test   the tests of make quick against the built wheel, in its own environment
#   make test    all tests except the long ones, in parallel (about 5 minutes on 2 cores after the install)
#   make e2e     the long matrices with real torchrun children
#   make thorough  variants and repetitions of tests in make test and make e2e (half an hour)
#   make check   ruff, mypy --strict, import-linter; make format applies ruff's fixes
#   make gpu     tests and benches that need a CUDA device (in .venv-gpu: make venv-gpu)
#   make gpu-shows  lists what make gpu would show
#   make frameworks   trainings with transformers, Lightning, accelerate, Keras and others under stoker, in their own environment
#   make soak    hours of kills, hangs, crashes and log following, drawn from SEED; results go to bench/results
#   make corpus  how many of the labeled logs are judged correctly
#   make ablation  what each signature and function contributes to the labeled texts (ONLY=prefix; half an hour)
#   make faults  COUNT (200) random kills, a full disk, a set clock, a torn journal, a suspension, a slow fsync (drawn from SEED; an hour)
#   make cluster  several nodes: SLURM with three nodes (installed, as root), sshd on loopback, namespaces with cut links, 50 random kills on two nodes (from SEED)
#   make lowest  the tests with the lowest supported versions of stoker's libraries; make newest: with the newest versions
#   make audit   known advisories and an SBOM of an install (requirements.lock; make lock regenerates it, with hashes)
#   make mutants  whether the tests notice small mistakes: COUNT mutations drawn from SEED; results go to bench/results
#   make pages   the generated pages (docs/failures.md, docs/recovery.md, docs/commands.md, configs/README.md, docs/reliability.md)
#   make guides  runs every command of docs/from-the-guides.md, shortened
#   make pictures   the pictures of the docs, drawn from recorded runs
#   make demo-picture   the moving picture of the README, recorded from the demo
#
# PYTHON=…    interpreter for .venv; for `make demo`, an interpreter that can import torch is used directly
# PIP_ARGS=…  extra arguments for pip, e.g. another index
# WORKERS=…   parallel tests of `make test` and `make quick` (0: one process; default: two per core, at most 8)

PYTHON ?= python3
PIP_ARGS ?=
WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
E2E_STAMP := $(VENV)/.e2e-packages
.DEFAULT_GOAL := help
# Many containers set it. Then each worker and each process of a test compiles all modules again, and collecting the tests takes
# 15 s instead of 6 s in every worker.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: ablation guides help install demo quick wheel-test test e2e thorough check format corpus pages pictures demo-picture soak venv-gpu gpu gpu-shows frameworks faults lowest newest lock audit mutants cluster clean

help:
	@sed -n '2,30s/^# \{0,1\}//p' Makefile

$(STAMP): pyproject.toml constraints.txt supervisor/__init__.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stoker needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[trainer,dev]'
	touch $(STAMP)

install: $(STAMP)

demo:
	@PYTHON="$(PYTHON)" PIP_ARGS="$(PIP_ARGS)" sh scripts/demo.sh

# worksteal: an idle worker takes over tests of a busy one. Some tests take 100 times as long as others.
PARALLEL := -n $(WORKERS) --dist worksteal
SHORT := not e2e and not thorough and not gpu and not frameworks

QUICK := -m '$(SHORT) and not serial' $(addprefix tests/,text job run diagnosis policy preflight contract)
quick: $(STAMP)
	$(BIN)/python -m pytest -q $(PARALLEL) $(QUICK)

# The tests import `supervisor` and `trainer`, which are aliases of stoker.supervisor and stoker.trainer in this environment.
wheel-test: $(STAMP)
	rm -rf .venv-wheel
	$(BIN)/python tests/tools/wheel.py .venv-wheel --short-names
	.venv-wheel/bin/python -m pytest -q $(PARALLEL) $(QUICK)

# Tests that measure time run alone, after the others, even if one of those failed.
test: $(STAMP)
	@status=0; \
	$(BIN)/python -m pytest -q $(PARALLEL) -m '$(SHORT) and not serial' || status=$$?; \
	$(BIN)/python -m pytest -q -m '$(SHORT) and serial' || status=$$?; \
	exit $$status

# These tests use half a core each, so three run on two cores. Those that load the machine run alone, after the others.
E2E_WORKERS ?= 3
e2e: $(STAMP)
	@status=0; \
	$(BIN)/python -m pytest -q -n $(E2E_WORKERS) --dist worksteal -m 'e2e and not thorough and not serial and not guides and not cluster' --durations=15 || status=$$?; \
	$(BIN)/python -m pytest -q -m 'e2e and not thorough and serial and not cluster' --durations=5 || status=$$?; \
	exit $$status

thorough: $(STAMP)
	$(BIN)/python -m pytest -q -n $(E2E_WORKERS) --dist worksteal -m 'thorough and not cluster' --durations=15

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Namespaces need root and nftables; installing SLURM and sshd needs root. Tests without their programs are skipped with a reason.
cluster: $(STAMP)
	-tests/tools/slurm_up.sh install
	-command -v sshd >/dev/null || test -x /usr/sbin/sshd || apt-get install -y --no-install-recommends openssh-server
	-test -x .venv-hand-off/bin/torchx || { $(PYTHON) -m venv .venv-hand-off && .venv-hand-off/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r tests/tools/hand_off.txt; }
	@status=0; \
	$(BIN)/python -m pytest -q tests/integration/test_two_nodes.py tests/integration/test_namespaces.py tests/integration/test_slurm.py tests/integration/test_nodes_ssh.py tests/cli/test_nodes.py tests/integration/test_hand_off.py tests/integration/test_from_the_guides_nodes.py || status=$$?; \
	$(BIN)/python bench/fault_run.py --job two-nodes --count 50 --seed $(or $(SEED),$(shell date +%Y%m%d)) --keep bench/results/node_kills.json || status=$$?; \
	exit $$status

# On Linux, the package index has torch with CUDA. For another build set GPU_TORCH or PIP_ARGS.
GPU_VENV := .venv-gpu
GPU_TORCH ?= torch
$(GPU_VENV)/.installed: pyproject.toml constraints.txt
	test -x $(GPU_VENV)/bin/python || $(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) $(GPU_TORCH)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[trainer,dev]'
	$(GPU_VENV)/bin/python -c 'import torch, sys; sys.exit(torch.version.cuda is None and "this torch has no CUDA: name another index with PIP_ARGS")'
	touch $@

venv-gpu: $(GPU_VENV)/.installed

# Lists what it would show first, even without a GPU.
gpu-shows:
	@sed -n '/^## What .make gpu. would show/,$$p' docs/gpu-unverified.md

gpu: gpu-shows venv-gpu
	$(GPU_VENV)/bin/python -m pytest -q -m gpu tests/gpu
	$(GPU_VENV)/bin/python bench/gpu.py --keep bench/results/gpu.json

# About 1.5 GB. The CPU build of torch is enough (PIP_ARGS, or pip's own configuration).
FRAMEWORKS_VENV := .venv-frameworks
$(FRAMEWORKS_VENV)/.installed: tests/frameworks/requirements.txt
	test -x $(FRAMEWORKS_VENV)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS_VENV)
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) torch
	$(FRAMEWORKS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r tests/frameworks/requirements.txt
	touch $@

# transformers 4.57.1 over the packages of the other environment: its Trainer resumes with the checkpoint's micro-batch. Its
# huggingface_hub is too old for datasets 5.
FRAMEWORKS_OLD_VENV := .venv-frameworks-old
$(FRAMEWORKS_OLD_VENV)/.installed: $(FRAMEWORKS_VENV)/.installed
	test -x $(FRAMEWORKS_OLD_VENV)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS_OLD_VENV)
	$(FRAMEWORKS_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$($(FRAMEWORKS_OLD_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/others.pth"
	$(FRAMEWORKS_OLD_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) transformers==4.57.1 'datasets<5'
	touch $@

# nanoGPT is fetched, never kept here. Without network its test is skipped with a reason. NANOGPT=… is your own checkout.
NANOGPT ?= $(CURDIR)/$(FRAMEWORKS_VENV)/nanoGPT
NANOGPT_COMMIT := 3adf61e154c3fe3fca428ad6bc3818b27a3b8291
frameworks: $(STAMP) $(FRAMEWORKS_VENV)/.installed $(FRAMEWORKS_OLD_VENV)/.installed
	-test -f "$(NANOGPT)/train.py" || (git init -q "$(NANOGPT)" && cd "$(NANOGPT)" && \
		git fetch -q --depth 1 https://github.com/karpathy/nanoGPT $(NANOGPT_COMMIT) && git checkout -q FETCH_HEAD)
	FRAMEWORKS_PYTHON="$(CURDIR)/$(FRAMEWORKS_VENV)/bin/python" FRAMEWORKS_NANOGPT="$(NANOGPT)" \
	FRAMEWORKS_OLD_PYTHON="$(CURDIR)/$(FRAMEWORKS_OLD_VENV)/bin/python" $(BIN)/python -m pytest -q -m frameworks tests/frameworks

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

corpus: $(STAMP)
	$(BIN)/python -m pytest -q -s tests/corpus

# The kept table has all pieces. With ONLY, the table is only printed.
ONLY ?=
ablation: $(STAMP)
	$(BIN)/python bench/ablation.py --processes 2 $(if $(ONLY),--only '$(ONLY)',--keep bench/results/ablation.json)

# torch and the test tools are as in constraints.txt. Only the libraries of a stoker install vary.
lowest newest: UV := .venv-supply/bin/uv
lowest: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
lowest newest: .venv-supply/.installed
	test -x .venv-$@/bin/python || $(PYTHON) -m venv .venv-$@
	$(UV) pip compile -q --no-header --resolution $(RESOLUTION) -o .venv-$@/runtime.txt pyproject.toml
	sed "$$(sed -n 's/^\([A-Za-z0-9_-]*\)==.*/s,^\1==.*,,I/p' .venv-$@/runtime.txt)" constraints.txt > .venv-$@/others.txt
	.venv-$@/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-$@/runtime.txt -c .venv-$@/others.txt $(PIP_ARGS) torch -e '.[trainer,dev]'
	.venv-$@/bin/python -m pytest -q $(PARALLEL) -m '$(SHORT) and not serial'

.venv-supply/.installed: constraints.txt
	test -x .venv-supply/bin/python || $(PYTHON) -m venv .venv-supply
	.venv-supply/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(PIP_ARGS) uv pip-audit cyclonedx-bom
	touch $@

# Advisories need the package index's own service. A mirror without it fails with a message.
lock: .venv-supply/.installed
	.venv-supply/bin/uv pip compile -q --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --upgrade -o requirements.lock pyproject.toml

audit: .venv-supply/.installed
	mkdir -p dist
	.venv-supply/bin/cyclonedx-py requirements --pyproject pyproject.toml --of JSON -o dist/sbom.json requirements.lock
	.venv-supply/bin/pip-audit -r requirements.lock --disable-pip --strict

# The same SEED continues an unfinished run. MINUTE=1 suspends for a whole minute.
faults: $(STAMP)
	$(BIN)/python bench/fault_run.py --count $(or $(COUNT),200) --seed $(or $(SEED),$(shell date +%Y%m%d)) $(if $(MINUTE),--minute) --keep bench/results/fault_run.json

pages: $(STAMP)
	$(BIN)/python scripts/failures_page.py
	$(BIN)/python scripts/recovery_page.py
	$(BIN)/python scripts/commands_page.py
	$(BIN)/python scripts/configs_page.py
	$(BIN)/python scripts/reliability_page.py

guides: $(STAMP)
	$(BIN)/python -m pytest -q -n $(E2E_WORKERS) -m '(e2e or guides) and not cluster' tests/integration/test_from_the_guides.py tests/integration/test_from_the_guides_nodes.py

pictures: $(STAMP)
	$(BIN)/python docs/pictures.py

# The demo is a real run, so it takes two minutes and needs tmux.
demo-picture: $(STAMP)
	$(BIN)/python scripts/demo_picture.py

# Hours. SEED=… repeats a run. Results are kept.
soak: $(STAMP)
	$(BIN)/python bench/fault_run.py --job trainer --count 20 --seed $(or $(SEED),$(shell date +%Y%m%d)) --keep bench/results/trainer_kills.json
	$(BIN)/python bench/fault_run.py --job healthy --count 12 --seed $(or $(SEED),$(shell date +%Y%m%d)) --keep bench/results/silences.json
	$(BIN)/python bench/follow.py --minutes 60 --seed $(or $(SEED),$(shell date +%Y%m%d)) --keep bench/results/follow.json
	$(BIN)/python bench/load.py --seconds 60 --keep bench/results/load.json
	$(BIN)/python bench/fuzz.py --seconds 1800 --big --seed $(or $(SEED),$(shell date +%Y%m%d)) --keep bench/results/fuzz.json

mutants: $(STAMP)
	$(BIN)/python bench/mutants.py --count $(or $(COUNT),20) --seed "$${SEED:-1}" --keep bench/results/mutants.json

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .hypothesis
