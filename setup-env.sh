#!/usr/bin/env bash
# Makes .venv with the extras in $extras, by default all that `test.sh` needs, once.  Sourced, by the scripts beside it or
# in a terminal, it also puts .venv first in PATH, and leaves the shell's settings and folder as they are.
if [ "${BASH_SOURCE[0]}" != "$0" ]; then
    extras="${extras:-}" bash "${BASH_SOURCE[0]}" || return
    PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/.venv/bin:$PATH"
    export PATH
    return
fi
set -euo pipefail
cd "$(dirname "$0")"
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "EPS needs Python 3.11 or later; $("$python" --version) was found (set PYTHON to choose another)" >&2
    exit 2
}
extras="${extras:-data,dev}"
stamp=".venv/.installed-$extras-$(sha256sum pyproject.toml | cut -c1-16)"
if [ ! -e "$stamp" ]; then
    echo "setting up .venv (once; takes a minute or two)" >&2
    if [ ! -x .venv/bin/pip ] && ! "$python" -m venv .venv 2>/dev/null; then
        # Debian splits venv off into a package of its own.
        [ "$(id -u)" = 0 ] || { echo "install the package python3-venv first" >&2; exit 2; }
        apt-get update -qq && apt-get install -y -qq python3-venv
        "$python" -m venv .venv
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
    for old in .venv/.installed-*; do
        # Of another pyproject.toml.
        [ "${old##*-}" = "${stamp##*-}" ] || rm -f "$old"
    done
    touch "$stamp"
fi
