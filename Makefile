# Needs Python 3.11 or newer with pip, and make; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := install
.PHONY: install test lint demo clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ace needs Python 3.11 or newer; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@# Some systems ship Python without ensurepip: then the system's pip fills an empty environment.
	@$(PIP) --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv >/dev/null 2>&1 || { \
	  $(PYTHON) -m venv --clear --without-pip .venv && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	$(PIP) install --quiet -r requirements.lock
	@# Its metadata asks for an older mujoco than ours, with which it works too.
	$(PIP) install --quiet --no-deps metaworld==3.1.1
	PYTHONWARNINGS=ignore $(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

demo: $(STAMP)
	@rm -rf runs/demo
	$(BIN)/ace train dmc/cartpole-swingup --preset cpu --action-repeat 4 --run runs/demo
	$(BIN)/ace eval runs/demo --episodes 5 --video

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
