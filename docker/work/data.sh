# Puts a data set into HDFS that anybody can make again.  Sourced by the scripts beside it.
set -eu
python3 - <<'PYTHON'
import random

from eps.storage.locations import RemotePath

chance = random.Random(0)
weights = [chance.gauss(0, 1) for _ in range(20)]
rows = []
for _ in range(4000):
    row = [round(chance.gauss(0, 1), 4) for _ in weights]
    label = 1 if sum(w * x for w, x in zip(weights, row)) + chance.gauss(0, 1) > 0 else -1
    rows.append(" ".join([str(label), *(f"{n}:{x}" for n, x in enumerate(row, 1))]) + "\n")
data = RemotePath.parse("hdfs:///data/rows.libsvm")
if data.status() is None:
    with data.parent.storage().write(data.name) as file:
        file.write("".join(rows).encode())
PYTHON
