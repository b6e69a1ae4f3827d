# A thin face over the tools: each target is one command. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
UV := $(or $(shell command -v uv 2>/dev/null),$(BIN)/uv)
INSTALL := $(UV) pip install --quiet --python $(BIN)/python --constraint requirements.lock --override overrides.txt
LESSONS ?=
SUBMISSIONS ?=
ROSTER ?=
LECTURER ?=
SERVER_PYTHON ?= /usr/bin/python3
# What CPU=1 leaves out of torch and lessons 17 and 21 run all the same: a compiler and tools for GPUs, which need none.
CUDA_TOOLS := $(foreach name,nvidia-cuda-nvrtc nvidia-cuda-runtime triton,'$(name); sys_platform == "linux"')
CPU ?=
# Every fresh process (a kernel, a rank) loads PyTorch from compiled modules: they must be kept the first time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup copy lab check test ci release lessons slides lecture site solutions student grade server bench soak lock
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1\t/' | expand -t 16

setup: .venv/student.stamp .venv/etc/jupyter/labconfig/page_config.json  ## build .venv from requirements.lock (CPU=1: a smaller torch, for the CPU only)

copy: setup  ## make my_course, your own copy, or bring it up to date; what you changed stays
	$(BIN)/python -m tools.copies

lab: copy  ## open JupyterLab at lesson 00, on localhost, with a token
	$(BIN)/jupyter lab --ip=127.0.0.1 --allow-root --notebook-dir=my_course --LabApp.default_url=/lab/tree/00_start_here.ipynb

test: .venv/test.stamp  ## run every lesson and every test but those that are marked ci or release
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

ci: .venv/test.stamp  ## run all tests but those that are marked release
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 -m "not release"

release: .venv/test.stamp  ## run all tests, each lesson measures for as long as it states, and every lesson as on other processors
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 -m "" --whole-budgets
	$(BIN)/python -m tools.authoring rehearse

check: .venv/test.stamp  ## check the style, the types, the import contracts and the quick tests (under two minutes)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 2 -m "not slow and not timed and not ci and not release" @tests/quick.txt

lessons: .venv/test.stamp  ## run the lessons' sources and write the notebooks (LESSONS="00 11", default all)
	$(BIN)/python -m tools.authoring build $(LESSONS)
	$(BIN)/python -m tools.authoring build --appendix $(LESSONS)

slides: .venv/test.stamp  ## cut one offline deck a lesson into slides/_build
	$(BIN)/python -m slides.build $(LESSONS)

lecture: .venv/test.stamp  ## cut the 45-minute lecture from the lessons' cells into slides/_build: HTML, PDF, a handout
	$(BIN)/python -m slides.lecture

site: .venv/test.stamp  ## build the course as a site that needs no network, in _build/site
	$(BIN)/python -m tools.site $(LESSONS)

solutions: .venv/test.stamp  ## write the exercises with their solutions to _build/solutions, for who learns alone
	$(BIN)/python -m tools.authoring solutions

student: .venv/test.stamp  ## build course/exercises and a clean student tree in _build/student
	$(BIN)/python -m tools.authoring student

grade: .venv/test.stamp  ## grade a folder or a download of submissions, each in a sandbox (SUBMISSIONS=folder ROSTER=list.csv)
	$(BIN)/python -m tools.grading "$(SUBMISSIONS)" $(if $(ROSTER),--roster "$(ROSTER)")

server: .venv/test.stamp  ## set this server up for a class, as root (LECTURER=name, and SERVER_PYTHON=/usr/bin/python3)
	$(BIN)/python -B -m tools.server install --lecturer "$(LECTURER)" --python "$(SERVER_PYTHON)"

bench: .venv/peers.stamp  ## run one benchmark and print its table (NAME=timing)
	$(BIN)/python -m tests.benchmarks.$(NAME)

soak: .venv/test.stamp  ## kill ranks 20 times between the calls of one pool, and see that nothing is lost or left behind
	COURSE_SOAK_KILLS=20 $(BIN)/python -m pytest tests/helpers/ranks/test_pool_soak.py

lock:  ## resolve every group again and rewrite requirements.lock
	$(UV) pip compile --quiet --universal --python-version 3.11 --no-header --override overrides.txt --extra course --group test --group peers pyproject.toml --output-file requirements.lock

.venv/uv.stamp:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed and this is %d.%d; name another: make setup PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv .venv
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet 'uv>=0.9'
	@touch $@

.venv/student.stamp: .venv/uv.stamp pyproject.toml requirements.lock overrides.txt
	$(INSTALL) $(if $(CPU),--torch-backend=cpu) --editable '.[course]'
	$(if $(and $(CPU),$(CUDA_TOOLS)),$(INSTALL) $(CUDA_TOOLS))
	@touch $@

# In this environment JupyterLab does not ask whether it may show news; the reader's own settings are not touched.
.venv/etc/jupyter/labconfig/page_config.json: .venv/student.stamp
	$(BIN)/jupyter labextension disable --level=sys_prefix @jupyterlab/apputils-extension:announcements
	@touch $@

.venv/test.stamp: .venv/student.stamp
	$(INSTALL) --group test
	@touch $@

.venv/server.stamp: .venv/test.stamp tools/server/proxy/package-lock.json
	$(BIN)/python -m tools.server proxy .venv
	@touch $@

.venv/peers.stamp: .venv/test.stamp
	$(INSTALL) --group peers
	@touch $@
