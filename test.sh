#!/usr/bin/env bash
# Everything that must hold: format, types, imports, generated code, tests.
#   ./test.sh [fast | gate | all] [arguments of pytest]
# fast takes two minutes, gate (the default) eight, and all hours; tests/tiers.py says what is in each.
set -euo pipefail
cd "$(dirname "$0")"
source ./setup-env.sh
tier=gate
case "${1-}" in fast | gate | all) tier="$1" && shift ;; esac
ruff check .
ruff format --check .
mypy
lint-imports --no-cache --no-logo
generated="$(mktemp -d)"
trap 'rm -rf "$generated"' EXIT
PYTHON=.venv/bin/python proto/generate.sh "$generated"
for package in eps hscheduler; do
    diff -r --exclude=__pycache__ --exclude=__init__.py "$package/pb" "$generated/$package/pb" || {
        echo "$package/pb is not what proto/ generates: run proto/generate.sh" >&2
        exit 1
    }
done
# Python keeps what it compiles: of the hundreds of processes that are started, none has to do it again.
unset PYTHONDONTWRITEBYTECODE
# Three for two cores: whole jobs and sweeps wait for much of the time, and Hadoop for most of it.
python -m pytest --tier "$tier" --numprocesses 3 "$@"
if [ "$tier" = all ] && [ $# = 0 ]; then
    # Jobs that are hit from a seed, and one that changes its size for an hour.
    python -m tools.chaos benchmarks/chaos.toml --seed "$RANDOM" --events 200
    python benchmarks/soak.py --minutes 60
fi
