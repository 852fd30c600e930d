# `make lab` and `make test` work from a fresh clone. Everything is installed into .venv; nothing needs activating.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help lab test docs matrix programs lint types suite frontend node_tools constraints clean

VENV := .venv
PYTHON_HERE := $(VENV)/bin/python
INSTALL := $(PYTHON_HERE) -m pip install --disable-pip-version-check --constraint constraints.txt
TYPESCRIPT := typescript@7.0.2
AXE := axe-core@4.14.1
PYRIGHT := pyright@1.1.414
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help:
	@echo 'make lab          open the first notebook in JupyterLab (PORT=8899 picks the port)'
	@echo 'make test         install what the tests need, and run every check'
	@echo 'make docs         build the documentation into docs/_build/html; warnings are errors'
	@echo 'make matrix       run the tests with each version of torch from 2.11 on (MATRIX=2.12 picks one)'
	@echo 'make constraints  pin the newest versions of everything except torch'
	@echo 'make clean        remove .venv and the files of tools'

# First pip, because an old pip cannot resolve so many pins; then torch, so that no other package chooses its version.
$(VENV)/ready: pyproject.toml constraints.txt
	"$$(build_tools/find_python)" -m venv "$(VENV)"
	$(INSTALL) pip
	$(INSTALL) torch
	$(INSTALL) hatchling
	$(INSTALL) --no-build-isolation --editable '.[lab,notebooks]'
	touch $@

$(VENV)/ready-to-test: $(VENV)/ready
	$(INSTALL) --no-build-isolation --editable '.[lab,notebooks,docs,test]'
	touch $@

# Without a display no browser is started: Jupyter prints the address.
lab: $(VENV)/ready
	exec $(PYTHON_HERE) -m jupyterlab --ServerApp.ip=127.0.0.1 \
	    --LabApp.default_url=/lab/tree/notebooks/01_first_look.ipynb \
	    $(if $(PORT),--ServerApp.port=$(PORT) --ServerApp.port_retries=0) \
	    $(if $(filter 0,$(shell id -u)),--allow-root) \
	    $(if $(DISPLAY)$(WAYLAND_DISPLAY)$(filter Darwin,$(shell uname)),,--no-browser)

# mypy runs in parallel with pytest, whose tests sometimes wait for browsers and kernels.
test: programs lint frontend
	$(MAKE) --no-print-directory --jobs 2 types suite docs

# Three processes for two cores, because tests wait for browsers and kernels; each takes 1.5 GB.
# Files keep the order of tests/conftest.py: xdist would put files with few tests last, and those take longest.
suite: $(VENV)/ready-to-test node_tools
	$(PYTHON_HERE) -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

programs:
	@build_tools/require_programs

docs: $(VENV)/ready-to-test
	$(PYTHON_HERE) -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html

matrix: $(VENV)/ready-to-test
	$(PYTHON_HERE) -m build_tools.matrix $(MATRIX)

lint: $(VENV)/ready-to-test
	$(PYTHON_HERE) -m ruff check
	$(PYTHON_HERE) -m ruff format --check

types: $(VENV)/ready-to-test
	$(PYTHON_HERE) -m mypy

frontend: programs
	if command -v npx; then npx --yes --package $(TYPESCRIPT) tsc --project tsconfig.json; fi

# The accessibility checker that tests/browser/test_accessibility.py runs in Chromium, and VS Code's type checker.
node_tools: programs
	if command -v npm; then npm install --no-save --no-package-lock --no-audit --no-fund $(AXE) $(PYRIGHT); fi

constraints: $(VENV)/ready
	$(PYTHON_HERE) build_tools/resolve_constraints.py > constraints.new
	mv constraints.new constraints.txt

clean:
	rm -rf "$(VENV)" node_modules build dist artifacts docs/_build docs/_generated docs/notebooks *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
