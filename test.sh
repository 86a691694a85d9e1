#!/usr/bin/env bash
# Everything that must hold: format, types, imports, generated code, tests.  Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"
source ./setup-env.sh
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
python -m pytest --numprocesses 2 "$@"
