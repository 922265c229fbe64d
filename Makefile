# Each verb is one line. `make install` does nothing when neither pyproject.toml nor constraints.txt has changed.
# Studies have commands of their own: studies/README.md.
BIN := .venv/bin
.PHONY: install lint type test test-studies soak cov bench demo checkpoint clean

install: ; @.ci/install all,dev
lint: install ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/python -m studies.house.prose
type: install ; $(BIN)/mypy
test: install ; @.ci/test -n 3 --dist loadfile
test-studies: install ; @.ci/test studies/tests -n 2 --dist loadfile
soak: install ; @.ci/soak
cov: ; @.ci/install all,dev,cov && $(BIN)/pytest --cov=rlsched --cov=rlsched_envs --cov=rlsched_agents --cov=rlsched_node --cov-report=term --cov-report=html
bench: install ; for file in benchmarks/bench_*.py; do $(BIN)/python -m benchmarks.$$(basename $$file .py) || exit 1; done
demo: ; @.ci/install broker,node,board && $(BIN)/python benchmarks/demo.py
checkpoint: install ; $(BIN)/python benchmarks/make_checkpoint.py
clean: ; rm -rf build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info && find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
