# make demo and make test need nothing but Python and make: each makes .venv when there is none.
PYTHON ?= python3
BIN := .venv/bin
# A process for each core, each with one thread: small matrices gain nothing from more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile

.PHONY: demo test test-slow format clean

demo: .venv/installed
	$(BIN)/pyro-gprn demo

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST)

test-slow: .venv/installed
	$(PYTEST) -m slow tests

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Python compiles a module when it is first loaded; compiling all 15,000 that come in takes a minute and a half.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
