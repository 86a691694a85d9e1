#!/usr/bin/env bash
# Searches the settings of a model of real data (the handwritten digits of scikit-learn): points come from Hyperopt, each
# is a job of its own, and the elastic policy resizes the jobs that run so that the next one starts at once.
set -euo pipefail
cd "$(dirname "$0")"
extras=data,sweep source ./setup-env.sh
home="$(mktemp -d)"
trap 'rm -rf "$home"' EXIT
export EPS_HOME="$home"
mkdir -p demo
rm -f demo/report.json demo/model.npz
hscheduler sweep examples/digits.toml --policy elastic --web 0 --report demo/report.json --page demo/page.html "$@"
# Its jobs go with the directory that they are in; the best one's model stays.
if [ -f demo/report.json ]; then
    hscheduler results demo/report.json --export-best demo/model.npz > /dev/null
fi
