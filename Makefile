# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
# Done when this very file is there: its name says what was installed, and where.
STAMP := $(VENV)/installed-$(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | tr ' ' '-')
SPARK := deploy/with_spark.sh $(VENV)
SUBMIT := $(SPARK) $(BIN)/spark-submit --properties-file conf/spark-defaults.local.conf
PYTEST_ARGS ?=
BENCH_ARGS ?=
CLUSTER := build/cluster
OLDER := .venv-older
OLDER_FILES := tests/older_spark
OLDER_STAMP := $(OLDER)/installed-$(shell { pwd; cat pyproject.toml $(OLDER_FILES)/{requirements,constraints}.txt; } | cksum | tr ' ' '-')
CHAOS_ARGS ?=

.PHONY: help venv java model demo test test-older bench chaos cluster cluster-stop kubernetes cluster-test check fmt readme clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

venv: $(STAMP) ## make .venv with the pinned packages

$(STAMP):
	@PYTHON='$(PYTHON)' deploy/make_env.sh $(VENV) $@

java: ## find Java 17 or 21, or install it (Debian, Ubuntu)
	@deploy/find_java.sh >/dev/null

model: $(STAMP) ## build the demo's model, labels and photographs under build/demo
	@$(BIN)/python deploy/demo/build_demo.py --out $(DEMO)

demo: java model ## classify real photographs with spark-submit, then ask SQL
	@$(SUBMIT) jobs/batch_infer.py conf/demo.yaml
	@$(SUBMIT) deploy/demo/show.py $(DEMO)/predictions

test: java model ## run all tests (PYTEST_ARGS="-k name" for some)
	@$(SPARK) $(BIN)/python -m pytest $(PYTEST_ARGS)

$(OLDER_STAMP):
	@PYTHON='$(PYTHON)' deploy/make_env.sh $(OLDER) $@ $(OLDER_FILES)/constraints.txt \
		--editable . --requirement $(OLDER_FILES)/requirements.txt

test-older: java model $(OLDER_STAMP) ## test on the oldest Spark that is supported, with Delta and Iceberg
	@$(OLDER_FILES)/run.sh $(OLDER) $(PYTEST_ARGS)

bench: java model ## measure against Ray Data, Daft and stock Spark (BENCH_ARGS="--rows 10000")
	@tests/benchmarks/run.sh $(BENCH_ARGS)

chaos: java model ## kill workers, nodes and drivers, compare every row (CHAOS_ARGS="--kills 20")
	@$(SPARK) $(BIN)/python -m tests.chaos.kills $(CHAOS_ARGS)

cluster: java model ## start HDFS and YARN on this machine, with the demo in HDFS
	@deploy/cluster/up.sh $(VENV) $(DEMO)

cluster-stop: ## end that cluster
	@$(BIN)/python deploy/cluster/hadoop.py --folder $(CLUSTER) stop && echo "no cluster of this folder runs"

kubernetes: $(STAMP) ## build kube-apiserver and kubectl from source for the tests of deploy/kubernetes (once)
	@PYTHON='$(CURDIR)/$(BIN)/python' tests/kubernetes/apiserver/build.sh >/dev/null

cluster-test: java model ## test on real HDFS and YARN daemons
	@$(SPARK) $(BIN)/python -m pytest tests/cluster $(PYTEST_ARGS)

# lint-imports without its cache: that keeps an answer about a file whose neighbours have changed.
check: $(STAMP) ## lint, format, types, import contracts, README reference
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m sparkinfer.driver.specs.reference --check README.md

fmt: $(STAMP) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

readme: $(STAMP) ## write the generated parts of README.md
	$(BIN)/python -m sparkinfer.driver.specs.reference --write README.md

clean: ## remove what was generated, but not .venv
	@! [ -e $(CLUSTER)/cluster.json ] || $(MAKE) --no-print-directory cluster-stop
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	find sparkinfer jobs deploy tests -name __pycache__ -prune -exec rm -rf {} +
