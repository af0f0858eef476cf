# Two commands do everything on a machine with Python 3.11+, make and git: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow check format clean

# Installed anew only when the package's metadata or the pins change.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/gmmseg demo

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(VENV)/.installed
	$(BIN)/python -m pytest -m slow

check: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
