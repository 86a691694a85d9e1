# A sweep on YARN: every trial is an application that reads its data from HDFS.
. "$(dirname "$0")/data.sh"
hscheduler sweep "$(dirname "$0")/sweep.toml" --on yarn --plain --report sweep.json --page sweep.html
