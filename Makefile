# make demo   set up, simulate and draw the paper's 52 B model; then calibrate this machine, train a
#             small model on two ranks, and lay what was predicted over what was measured
# make docs   set up, then build the site in build/site: runs its tutorials, notebooks and figures
# make test   set up, then run the tests
# make fresh  set up, then the comparisons of two implementations, on new random examples each time
# make check  formatter, linter, strict types, and who imports whom
# make wheels source distribution and wheels of all platforms in build/wheels, made on this machine

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt

DEMO := --model bert-52b --cluster dgx1-v100 --pp 8 --tp 4 --dp 2 --sharding zero1 --microbatches 16 --loops 4
TRAINED := breadth-first --pp 2 --loops 2 --microbatches 8

FRESH := $(foreach each, causes closed_forms engines evaluation object_lowering orders period \
	plain_checker posting posts prefetch rank_times, $(wildcard tests/*/*/test_$(each).py tests/*/test_$(each).py))

CORE := setup.py bfpp/core/sources.py $(wildcard bfpp/core/source/*.[ch] bfpp/core/source/*/*.[ch])

.PHONY: demo docs test fresh check wheels clean

demo: $(VENV)/runtime $(VENV)/core
	$(BIN)/bfpp compare $(DEMO) --html out/report.html --svg out/schedules.svg
	$(BIN)/bfpp calibrate --out out/profile.toml
	$(BIN)/bfpp simulate $(TRAINED) --profile out/profile.toml --timeline out/predicted.json.gz
	$(BIN)/bfpp run $(TRAINED) --steps 30 --verify --trace out/measured.json.gz
	$(BIN)/bfpp diff out/predicted.json.gz out/measured.json.gz --html out/difference.html

docs: $(VENV)/docs $(VENV)/core
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo wrote build/site/index.html

test: $(VENV)/development $(VENV)/core
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

fresh: $(VENV)/development $(VENV)/core
	HYPOTHESIS_PROFILE=fresh $(BIN)/python -m pytest --numprocesses 2 -m hypothesis $(FRESH)

check: $(VENV)/development
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }

wheels: $(VENV)/builder
	$(INSTALL) build $$($(BIN)/python -c 'import setup; print(setup.ZIG)')
	rm -rf build/wheels
	$(BIN)/python -m build --no-isolation --sdist --outdir build/wheels >/dev/null
	for platform in $$($(BIN)/python -c 'import setup; print(*setup.TARGETS)'); do \
		BFPP_PLATFORM=$$platform $(PIP) wheel --no-build-isolation --no-deps \
			--wheel-dir build/wheels build/wheels/*.tar.gz || exit; \
	done
	@ls -l build/wheels

clean:
	rm -rf $(VENV) out build *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What compiles the core: zig, where this machine has no compiler.
$(VENV)/builder: $(BIN)/python pyproject.toml setup.py constraints.txt
	$(INSTALL) packaging setuptools
	$(INSTALL) packaging $$($(BIN)/python -c 'import setup; print(*setup.get_requires_for_build_wheel())')
	@touch $@

# After a change of a C file, nothing else: half a second.
$(VENV)/core: $(VENV)/builder $(CORE)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/runtime: $(VENV)/builder
	$(INSTALL) --no-build-isolation --editable '.[torch]'
	@touch $@

$(VENV)/development: $(VENV)/builder
	$(INSTALL) --no-build-isolation --editable '.[torch,hf,print,schedule,search,dev]'
	@touch $@ $(VENV)/runtime

$(VENV)/docs: $(VENV)/builder
	$(INSTALL) --no-build-isolation --editable '.[torch,print,schedule,docs]'
	@touch $@ $(VENV)/runtime
