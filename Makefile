# Each verb is one line. `make install` does nothing when neither pyproject.toml nor constraints.txt has changed.
BIN := .venv/bin
.PHONY: install lint type test cov bench bench-policy bench-policy-quick figures demo checkpoint clean

install: ; @.ci/install all,dev
lint: install ; $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports
type: install ; $(BIN)/mypy
test: install ; $(BIN)/pytest -n 2 --dist loadfile
cov: install ; $(BIN)/pytest --cov=rlsched --cov=rlsched_envs --cov=rlsched_agents --cov=rlsched_node --cov-report=term --cov-report=html
bench: install ; for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done
bench-policy: install ; $(BIN)/python -m benchmarks.policy.compare --docs docs/results.md && $(BIN)/python -m benchmarks.policy.bar --docs docs && $(BIN)/python -m benchmarks.policy.generalise --docs docs
bench-policy-quick: install ; $(BIN)/python -m benchmarks.policy.compare --quick && $(BIN)/python -m benchmarks.policy.bar --quick
figures: install ; $(BIN)/python benchmarks/model_figures.py
demo: ; @.ci/install broker,node,board && $(BIN)/python benchmarks/demo.py
checkpoint: install ; $(BIN)/python benchmarks/make_checkpoint.py
clean: ; rm -rf build dist htmlcov .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info && find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
