# `make dev` and `make test` are all a contributor needs; both set up what they use.
SHELL := bash
PY ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
TOOLS := $(VENV)/.tools
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile

.DEFAULT_GOAL := help
.PHONY: help dev test check fmt unit bench soak drill site demo clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PY) -m venv $(VENV)
	@$(PIP) -c constraints.txt -e .
	@touch $@

# What only tests and checks need; apart, so that `make dev` on a fresh machine is quick.
$(TOOLS): $(STAMP)
	@$(PIP) 'pip>=25.1'
	@$(PIP) -c constraints.txt --group dev
	@touch $@

dev: $(STAMP) ## Serve functions/ on the embedded bus, with reload
	@exec $(BIN)/echod dev functions $(ARGS)

test: $(TOOLS) check ## Everything that CI runs: checks, then all tests
	@$(BIN)/python -m pytest -q -n 2 $(ARGS)

check: $(TOOLS) ## Format, lint, types, floors
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/mypy
	@$(BIN)/pyright

fmt: $(TOOLS) ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

unit: $(TOOLS) ## The fast tests alone
	@$(BIN)/python -m pytest -q tests/unit tests/house $(ARGS)

bench: $(TOOLS) ## Our figures on this machine
	@$(BIN)/python -m bench $(ARGS)

soak: $(TOOLS) ## The long drills, whole
	@ECHOD_SOAK=1 $(BIN)/python -m pytest -q -n 2 tests/system tests/machines $(ARGS)

drill: $(TOOLS) ## Kill everything at random points: make drill ROUNDS=200
	@cd tests && ../$(BIN)/python drill.py --rounds $(or $(ROUNDS),200) $(ARGS)

site: $(TOOLS) ## Build the documentation's site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

demo: $(TOOLS) ## Record docs/demo.cast anew
	@PYTHONPATH=tests $(BIN)/python tests/demo.py docs/demo.cast

clean: ## Remove the environment, state and caches
	@rm -rf $(VENV) build .echod .mypy_cache .ruff_cache .pytest_cache .hypothesis
