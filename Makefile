# make demo and make test need nothing but Python and make: each makes .venv when there is none.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow format clean

demo: .venv/installed
	$(BIN)/pyro-gprn demo

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

test-slow: .venv/installed
	$(BIN)/pytest -m slow tests

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
