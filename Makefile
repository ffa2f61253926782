# Everything that a fresh machine needs is python3, make and a package index.
.DEFAULT_GOAL := help
.PHONY: help demo test lint types wheel

# A uv that is there already, else one of our own inside .venv.
UV ?= $(or $(shell command -v uv 2>/dev/null),.venv/bin/uv)
RUN := .venv/bin/python
# --inexact: that uv of our own must not be removed from .venv by itself.
SYNC = $(UV) sync --quiet --locked --inexact

help:
	@echo 'make demo    see it work: no account, no server, no configuration (SERVE=1 keeps it up)'
	@echo 'make test    install what the tests need, and run all of them'
	@echo 'make lint    style; make types: static types; make wheel: build and check the wheel'

.venv/bin/uv:
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/demo.stamp: uv.lock pyproject.toml | $(UV)
	$(SYNC) --no-default-groups
	@touch $@

.venv/dev.stamp: uv.lock pyproject.toml | $(UV)
	$(SYNC)
	@touch $@

demo: .venv/demo.stamp
	@$(RUN) -m prefect_prime.flows.demo --real-run tests/data/verifiers-runs/errors $(if $(SERVE),--serve)

test: .venv/dev.stamp
	$(RUN) -m pytest $(ARGS)

lint: .venv/dev.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/dev.stamp
	.venv/bin/mypy

wheel: .venv/dev.stamp | $(UV)
	rm -rf dist
	$(UV) build --quiet
	$(RUN) -m pytest -q tests/packaging
