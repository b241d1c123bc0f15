# make demo   set up, then simulate and draw the paper's 52 B model
# make test   set up, then run the tests
# make check  formatter, linter, strict types

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

DEMO := --model bert-52b --cluster dgx1-v100 --pp 8 --tp 4 --dp 2 --microbatches 16 --loops 4

.PHONY: demo test check clean

demo: $(VENV)/core
	@mkdir -p out
	$(BIN)/bfpp compare $(DEMO) --html out/report.html --svg out/schedules.svg

test: $(VENV)/development
	$(BIN)/python -m pytest

check: $(VENV)/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) out build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/core: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/development: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[torch,search,dev]'
	@touch $@ $(VENV)/core
