#!/usr/bin/env bash
# Generates the Python modules of every .proto file into the packages (committed; .ci/run fails on a difference).
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-.}"
python="${PYTHON:-python3}"
"$python" -m grpc_tools.protoc -Iproto --python_out="$out" --pyi_out="$out" proto/*/pb/*.proto
"$python" -m grpc_tools.protoc -Iproto --grpc_python_out="$out" proto/eps/pb/control.proto proto/eps/pb/broker.proto \
  proto/hscheduler/pb/scheduler.proto
