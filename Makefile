# Everything that a fresh machine needs is python3, make and a package index.
.DEFAULT_GOAL := help
.PHONY: help demo test lint types wheel bench

# A uv that is there already, else one of our own in the environment that it fills.
UV ?= $(or $(shell command -v uv 2>/dev/null),.venv/bin/uv)
RUN := .venv/bin/python
# Each process has its own Prefect server and embedded platform; tests/conftest.py says what stays
# together. ARGS=-n0 for one process: a debugger needs it.
PARALLEL = --numprocesses 2 --dist loadgroup --no-loadscope-reorder
# --inexact: `make demo` after `make test` takes nothing away, nor that uv itself.
SYNC = $(UV) sync --quiet --locked --inexact

help:
	@echo 'make demo    see it work: no account, no server, no configuration (SERVE=1 keeps it up)'
	@echo 'make test    install what the tests need, and run all of them (ARGS=... goes to pytest)'
	@echo 'make bench   what tracking costs, beside prime-runs (20 minutes; QUICK=1: two)'
	@echo 'make lint    style; make types: static types; make wheel: build and check the wheel'

.venv/bin/uv:
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check uv

# Compiled while installing: else the first start of everything takes twice as long.
.venv/demo.stamp: uv.lock pyproject.toml | $(UV)
	$(SYNC) --no-default-groups --compile-bytecode
	@touch $@

.venv/dev.stamp: uv.lock pyproject.toml | $(UV)
	$(SYNC)
	@touch $@

demo: .venv/demo.stamp
	@DO_NOT_TRACK=1 $(RUN) -m prefect_prime.flows.demo --real-run tests/data/verifiers-runs/errors $(if $(SERVE),--serve)

test: .venv/dev.stamp
	$(RUN) -m pytest $(PARALLEL) $(ARGS)

# The opponent is one of the judges, so the tests' environment has it.
bench: .venv/dev.stamp
	$(RUN) -m benchmarks $(if $(QUICK),--quick) $(ARGS)

lint: .venv/dev.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

# What is installed, then what a person writes against it.
types: .venv/dev.stamp
	.venv/bin/mypy
	.venv/bin/mypy tests/typing

# The tests build the same way, from a copy, and look into what comes out.
wheel: .venv/dev.stamp
	$(RUN) -m pytest -qq tests/packaging
	rm -rf dist
	$(UV) build --quiet
