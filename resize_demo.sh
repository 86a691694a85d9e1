#!/usr/bin/env bash
# Trains a real data set (the handwritten digits of scikit-learn) while workers and servers come and go, then trains it
# again on one worker and one server: the two models are the same to the last bit.
set -euo pipefail
cd "$(dirname "$0")"
extras=data source ./setup-env.sh
home="$(mktemp -d)"
trap 'rm -rf "$home"' EXIT
export EPS_HOME="$home"
common=(--data sklearn:digits --model dnn --hidden 64 --test 0.2 --iterations 400 --optimizer adam --learning-rate 0.01)
echo "== 3 workers and 3 servers, with six changes of size on the way"
eps run --name elastic "${common[@]}" --workers 3 --servers 3 \
    --at 60:add-workers=2 --at 110:add-servers=2 --at 160:remove-workers=worker-1 \
    --at 210:remove-servers=server-1,server-2 --at 260:add-workers=1 --at 310:remove-workers=2 \
    --report "$home/elastic.json"
echo "== 1 worker and 1 server, nothing changes"
eps run --name fixed "${common[@]}" --workers 1 --servers 1 --report "$home/fixed.json"
python - "$home" <<'PY'
import json, pathlib, sys

home = pathlib.Path(sys.argv[1])
elastic, fixed = (json.loads((home / f"{name}.json").read_text())["model_sha256"] for name in ("elastic", "fixed"))
print(f"elastic {elastic}\nfixed   {fixed}\n{'the same to the last bit' if elastic == fixed else 'DIFFERENT'}")
sys.exit(elastic != fixed)
PY
