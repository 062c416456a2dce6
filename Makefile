PYTHON ?= python3
VENV := .venv

.PHONY: test
test: $(VENV)/stamp
	$(VENV)/bin/python -m pytest -q

$(VENV)/stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -e ".[dev,s3,gcs,examples]" tensorflow-cpu
	$(VENV)/bin/pip install -q torch==2.13.0
	touch $@
