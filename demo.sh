#!/usr/bin/env bash
# Searches the settings of a model of real data (the handwritten digits of scikit-learn): points come from Hyperopt, each
# is a job of its own, and the elastic policy resizes the jobs that run so that the next one starts at once.
# The sweep and its jobs stay, as those of any sweep: hscheduler sweeps and eps list show them.
set -euo pipefail
cd "$(dirname "$0")"
extras=data,sweep source ./setup-env.sh
mkdir -p demo
rm -f demo/report.json demo/model.npz
hscheduler sweep examples/digits.toml --policy elastic --web 0 --report demo/report.json --page demo/page.html "$@"
# Unless another file was asked for.
if [ -f demo/report.json ]; then
    hscheduler results demo/report.json --export-best demo/model.npz > /dev/null
fi
