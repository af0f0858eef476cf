# Two commands do everything on a machine with Python 3.11+, make and git: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-slow check docs wheel-check format clean

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

# The site, in build/site: these pages, the notebooks and the docstrings. A warning is an error.
docs: $(VENV)/.installed
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site
	@echo open build/site/index.html

# The package as others install it: built, unpacked beside the repository's own code, and used from another folder.
WHEEL := $(CURDIR)/build/wheel
AS_INSTALLED := cd $(WHEEL)/elsewhere && PYTHONPATH=$(WHEEL)/site $(CURDIR)/$(BIN)/python
wheel-check: $(VENV)/.installed
	rm -rf $(WHEEL)
	mkdir -p $(WHEEL)/elsewhere
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir $(WHEEL) .
	$(BIN)/python -m pip install --quiet --no-deps --target $(WHEEL)/site $(WHEEL)/gmmseg-*.whl
	$(AS_INSTALLED) -c 'import gmmseg; assert gmmseg.__file__.startswith("$(WHEEL)"), gmmseg.__file__'
	$(AS_INSTALLED) $(WHEEL)/site/bin/gmmseg --version
	$(AS_INSTALLED) $(WHEEL)/site/bin/gmmseg zoo > zoo.txt
	$(AS_INSTALLED) -m gmmseg configs > configs.txt
	$(AS_INSTALLED) -m gmmseg train folder machine=cpu --print-config > config.yaml
	$(AS_INSTALLED) -c 'from gmmseg.data import load_label_space; load_label_space("cityscapes")'

format: $(VENV)/.installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist docs/generated .pytest_cache .mypy_cache .ruff_cache
