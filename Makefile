# make demo   set up, simulate and draw the paper's 52 B model; then calibrate this machine, train a
#             small model on two ranks, and lay what was predicted over what was measured
# make docs   set up, then build the site in build/site: runs its tutorials, notebooks and figures
# make test   set up, then run the tests
# make fresh  set up, then the comparisons of two implementations, on new random examples each time
# make check  formatter, linter, strict types, and who imports whom

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

DEMO := --model bert-52b --cluster dgx1-v100 --pp 8 --tp 4 --dp 2 --sharding zero1 --microbatches 16 --loops 4
TRAINED := breadth-first --pp 2 --loops 2 --microbatches 8

FRESH := $(foreach each, causes closed_forms compiled_lowering engines evaluation object_lowering \
	period plain_checker posting posts prefetch, $(wildcard tests/*/*/test_$(each).py tests/*/test_$(each).py))

.PHONY: demo docs test fresh check clean

demo: $(VENV)/runtime
	$(BIN)/bfpp compare $(DEMO) --html out/report.html --svg out/schedules.svg
	$(BIN)/bfpp calibrate --out out/profile.toml
	$(BIN)/bfpp simulate $(TRAINED) --profile out/profile.toml --timeline out/predicted.json.gz
	$(BIN)/bfpp run $(TRAINED) --steps 30 --verify --trace out/measured.json.gz
	$(BIN)/bfpp diff out/predicted.json.gz out/measured.json.gz --html out/difference.html

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo wrote build/site/index.html

test: $(VENV)/development
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile

fresh: $(VENV)/development
	HYPOTHESIS_PROFILE=fresh $(BIN)/python -m pytest --numprocesses 2 -m hypothesis $(FRESH)

check: $(VENV)/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }

clean:
	rm -rf $(VENV) out build *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/runtime: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[torch]'
	@touch $@

$(VENV)/development: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[torch,hf,print,schedule,search,dev]'
	@touch $@ $(VENV)/runtime

$(VENV)/docs: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[torch,print,schedule,docs]'
	@touch $@ $(VENV)/runtime
