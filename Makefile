# Everything runs in a virtual environment of its own; needs python3 >= 3.11 (with venv), make and git.
# Debian's Python 3.11 is the one that the image contains: tests and benchmarks run on it where it can be had.
PYTHON ?= $(shell /usr/bin/python3.11 -c 'import ensurepip, venv' 2>/dev/null && echo /usr/bin/python3.11 || echo python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SITE   ?= build/site
# More than there are cores: most of the time tests wait, for deadlines, processes and sockets.
JOBS   ?= 6

# The tests start hundreds of processes of the same modules: those are compiled once, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# The lock names everything that is needed, so nothing is left to resolve; what is never imported is never compiled. Only
# wheels are taken: the setup script of a source distribution would run here.
INSTALL := install --quiet --disable-pip-version-check --no-deps --no-compile
LOCKED  := --require-hashes --only-binary=:all: -r

.PHONY: help demo site site-serve test test-browser collected lint format style types laws docs proto image dist release release-tag storm bench pythons clean

help:            ## Show these targets.
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(READY): requirements.lock requirements-pip.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "python3 >= 3.11 is needed; set PYTHON=")'
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip $(INSTALL) $(LOCKED) requirements-pip.lock
	@$(BIN)/python -m pip $(INSTALL) $(LOCKED) requirements.lock
	@$(BIN)/python -m pip $(INSTALL) --no-build-isolation --editable .
	@touch $@

demo: $(READY)   ## The main job on one laptop: mend a GPU; publish, allocate, prepare and unprepare for every example.
	@$(BIN)/dra-driver demo --mending && $(BIN)/dra-driver demo

test: $(READY)   ## The fast lane: lint, types, laws, tests.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint collected
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	@echo "the same claims on a real Kubernetes: make test-cluster (docs/development.md)"

test-browser: $(READY) ## The console's pages in a headless Chromium (apt-get install chromium).
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(LOCKED) requirements-browser.lock
	@$(BIN)/python deploy/site --out $(SITE) || { rm -rf $(SITE); echo "no site: its tests are skipped"; }
	$(BIN)/python -m pytest tests/browser

site: $(READY)   ## Build the docs and the playground as static files, build/site (SITE=FOLDER; node, npm).
	$(BIN)/python deploy/site --out $(SITE)

site-serve: $(READY) ## Serve build/site on the loopback address, as any static host would.
	$(BIN)/python deploy/site/serve.py $(SITE)

lint: style types laws ## Lint, formatting, types and import laws.

types: $(READY)
	$(BIN)/mypy

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

laws: $(READY)
	$(BIN)/lint-imports

# In a fresh clone this compiles all tests once, while mypy runs, instead of once in each of the test processes.
collected: $(READY)
	@output=$$($(BIN)/python -m pytest --collect-only -qq 2>&1) || { echo "$$output"; exit 1; }

format: $(READY) ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)   ## Regenerate the pages that are made from code.
	$(BIN)/python -m dra_driver.node.devices.describing
	$(BIN)/python -m dra_driver.node.claims.config_schema > docs/device-config.schema.json
	$(BIN)/python -m dra_driver.tools.schemas docs/schemas
	$(BIN)/python -m dra_driver.node.health.xids > docs/xids.md
	$(BIN)/python -m tests.docs.support.pages

proto: $(READY)  ## Regenerate the gRPC messages from proto/.
	proto/generate.sh

image: $(READY)  ## Build the container image for amd64 and arm64, build/image/image.tar (REFERENCE=NAME:TAG; Python 3.11, apt).
	@$(BIN)/python deploy/image/build.py $(if $(REFERENCE),--reference $(REFERENCE)) $(if $(SOURCE),--source $(SOURCE))

dist: $(READY)   ## Make what is handed out into dist/ (SIGN=KEY, SOURCE=URL, DOWNLOADS=URL: RELEASE.md).
	@$(BIN)/python deploy/dist.py --helm "$$(command -v helm || $(BIN)/python -m cluster helm)" \
	  $(if $(SIGN),--sign $(SIGN)) $(if $(SOURCE),--source $(SOURCE)) $(if $(DOWNLOADS),--downloads $(DOWNLOADS))

release: $(READY) ## Give everything a new version (VERSION=X.Y.Z): the first step of a release (RELEASE.md).
	@$(BIN)/python deploy/release.py prepare "$(VERSION)" --helm "$$(command -v helm || $(BIN)/python -m cluster helm)"

release-tag: $(READY) ## Record the commit of the release that was committed last, and make the tags that are missing.
	@$(BIN)/python deploy/release.py tag

storm: $(READY)  ## Kill agents in a storm over one node after another, with everything on (root; about an hour).
	$(BIN)/python -m tests.storm.support

bench: $(READY)  ## Measure speed and memory against the budgets (table; JSON=FILE for machines).
	$(BIN)/python -m benchmarks $(if $(JSON),--json $(JSON))

pythons:         ## Run the tests under every Python 3.11 to 3.14 that is found.
	@for v in 3.11 3.12 3.13 3.14; do \
	  if python$$v -c '' 2>/dev/null; then \
	    $(MAKE) --no-print-directory .venv-$$v/.ready PYTHON=python$$v VENV=.venv-$$v && \
	    .venv-$$v/bin/python -m pytest -n $(JOBS) --dist worksteal || exit 1; \
	  else echo "python$$v: not found, skipped"; fi; done

clean:           ## Remove everything that git ignores: virtual environments, caches, builds.
	rm -rf .venv* build dist *.egg-info .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . \( -name __pycache__ -o -name node_modules -o -name '*.vsix' \) -prune -exec rm -rf {} +

-include cluster/cluster.mk
