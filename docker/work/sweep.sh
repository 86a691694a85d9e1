# A sweep on YARN: one application, whose trials read their data from HDFS.
. "$(dirname "$0")/data.sh"
hscheduler sweep "$(dirname "$0")/sweep.toml" --on yarn --plain --report sweep.json --page sweep.html
