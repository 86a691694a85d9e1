# One job on YARN: data, checkpoints and the model on HDFS.
. "$(dirname "$0")/data.sh"
# Where a model is exported to, a folder must be.
hadoop.sh fs -mkdir -p /models
eps run --on yarn --name rows --anew --data hdfs:///data/rows.libsvm --test 0.2 --workers 2 --servers 1 --iterations 300 \
    --stretch 0.01 --at 20:add-workers=1 --at 200:remove-workers=1 --checkpoint-every 20 \
    --checkpoint-dir hdfs:///checkpoints --export hdfs:///models/rows.npz
hadoop.sh fs -ls /checkpoints/rows /models
