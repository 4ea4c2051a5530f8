# Two commands for users: `make demo` and `make test`. The rest serves contributors.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: demo test lint types unit timm docs test-lowest test-python wheel tables tutorials lock bench stress clean

# torch first and pinned: a plain install of any other package may pull another build of it.
# pip reads groups of dependencies from version 25.1 on.
.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) 'pip>=25.1' torch
	$(PIP) -e '.[report]'
	touch $@

# laplace-torch asks for torchvision but does without it; beside a CPU-only torch its wheel cannot be
# imported, and whatever finds it installed tries to.
.venv/dev: .venv/core
	$(PIP) -e '.[all]' --group docs --group dev
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip uninstall --quiet --yes torchvision
	touch $@

# timm needs torchvision, beside which laplace-torch cannot be imported: an environment of its own.
.venv-timm/ready: pyproject.toml constraints.txt
	test -x .venv-timm/bin/python || $(PYTHON) -m venv .venv-timm
	.venv-timm/bin/pip --disable-pip-version-check install --quiet -c constraints.txt torch
	.venv-timm/bin/pip --disable-pip-version-check install --quiet -c constraints.txt -e '.[timm]' peft pytest pytest-timeout beartype hypothesis
	touch $@

demo: .venv/core
	$(BIN)/kepsvgp demo

test: lint types docs unit timm

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/dev
	$(BIN)/pyright

unit: .venv/dev
	$(BIN)/pytest -n 2 --dist loadgroup --durations=20

timm: .venv-timm/ready
	.venv-timm/bin/pytest -o addopts="--timeout=600" tests/timm

docs: .venv/dev
	$(BIN)/mkdocs build --strict --quiet

# The lowest versions that pyproject.toml declares, beside the pinned torch; their own warnings are
# no errors.
test-lowest:
	test -x .venv-lowest/bin/python || python3.11 -m venv .venv-lowest
	$(PYTHON) tools/lowest.py > .venv-lowest/lowest.txt
	.venv-lowest/bin/pip install --quiet $$(grep ^torch== constraints.txt) -r .venv-lowest/lowest.txt pytest pytest-timeout beartype hypothesis
	.venv-lowest/bin/pip uninstall --quiet --yes torchvision
	.venv-lowest/bin/pip install --quiet --no-deps -e .
	OMP_NUM_THREADS=1 .venv-lowest/bin/pytest -o filterwarnings=default -o addopts="--timeout=600" \
		tests/attention tests/cli tests/config tests/conversion tests/data tests/inference tests/integrations tests/maths tests/methods tests/metrics

# All tests with another Python: make test-python PYTHON=python3.13
test-python:
	test -x .venv-$(notdir $(PYTHON))/bin/python || $(PYTHON) -m venv .venv-$(notdir $(PYTHON))
	$(MAKE) BIN=.venv-$(notdir $(PYTHON))/bin .venv-$(notdir $(PYTHON))/dev
	.venv-$(notdir $(PYTHON))/bin/pytest -n 2 --dist loadgroup

.venv-python%/dev: pyproject.toml constraints.txt
	$(PIP) 'pip>=25.1' torch
	$(PIP) -e '.[all]' --group docs --group dev
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip uninstall --quiet --yes torchvision
	touch $@

# The release as a user gets it: the wheel, built from the sdist, in an environment with nothing else.
wheel:
	rm -rf dist .venv-build .venv-wheel
	$(PYTHON) -m venv .venv-build
	.venv-build/bin/pip install --quiet build
	.venv-build/bin/python -m build --outdir dist
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --quiet -c constraints.txt torch
	.venv-wheel/bin/pip install --quiet -c constraints.txt "$$(echo dist/*.whl)[report]"
	cd dist && OMP_NUM_THREADS=1 ../.venv-wheel/bin/kepsvgp train digits-small train.epochs=1 --out run
	cd dist && ../.venv-wheel/bin/kepsvgp report run --out report.html
	ls -l dist

# Tables and forest plot of the pages, from the numbers in results/; a test fails when they differ.
tables: .venv/dev
	$(BIN)/python -m tools.tables
	$(BIN)/python -m tools.forest

# What the tutorials print, and their figures.
tutorials: .venv/dev
	$(BIN)/python -m tools.tutorials

# Everything that both environments have, as what is tested from now on. No hashes: pip wants all or
# none, and neither an editable install nor a torch that is built for this machine has one to check.
lock: .venv/dev .venv-timm/ready
	echo '# What was tested: made by `make lock`, not typed. torch is installed first, so that no other package chooses its build.' > constraints.new
	for bin in $(BIN) .venv-timm/bin; do $$bin/pip list --format=freeze --exclude-editable; done \
		| grep -v -E '^(pip|setuptools)==' | sed 's/+.*//' | LC_ALL=C sort -fu >> constraints.new
	mv constraints.new constraints.txt

# Measures speed on a machine that has nothing else to do; benchmarks/README.md is its page.
bench: .venv/dev
	$(BIN)/python -m benchmarks --write

# All of what `make test` does a little of; about 18 minutes on two cores. It prints the counts.
stress: .venv/dev
	KEPSVGP_STRESS=long OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadgroup -o addopts="--timeout=1800" tests/stress tests/conversion/test_families.py

clean:
	rm -rf .venv .venv-* dist site .pytest_cache .ruff_cache
