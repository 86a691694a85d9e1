#!/usr/bin/env bash
# Everything that must hold: format, types, generated code, tests.  Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")"
source ./setup-env.sh
ruff check .
ruff format --check .
mypy
generated="$(mktemp -d)"
trap 'rm -rf "$generated"' EXIT
PYTHON=.venv/bin/python proto/generate.sh "$generated"
diff -r --exclude=__pycache__ --exclude=__init__.py eps/pb "$generated/eps/pb" || {
    echo "eps/pb is not what proto/ generates: run proto/generate.sh" >&2
    exit 1
}
python -m pytest "$@"
