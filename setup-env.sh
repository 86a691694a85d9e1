#!/usr/bin/env bash
# Makes .venv with everything that `demo.sh` and `test.sh` need, once; sourced by both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "EPS needs Python 3.11 or later; $("$python" --version) was found (set PYTHON to choose another)" >&2
    exit 2
}
stamp=".venv/.installed-$(sha256sum pyproject.toml | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "setting up .venv (once; takes a few minutes)" >&2
    if ! "$python" -m venv .venv 2>/dev/null; then
        # Debian splits venv off into a package of its own.
        [ "$(id -u)" = 0 ] || { echo "install the package python3-venv first" >&2; exit 2; }
        apt-get update -qq && apt-get install -y -qq python3-venv
        "$python" -m venv .venv
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[data,dev]'
    rm -f .venv/.installed-*
    touch "$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
