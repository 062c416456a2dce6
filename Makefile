PYTHON ?= python3
VENV := .venv

.PHONY: test
test: $(VENV)/stamp
	$(VENV)/bin/python -m pytest -q

$(VENV)/stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -e ".[dev]"
	touch $@
