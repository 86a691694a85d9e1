"""What a job stores: its directory, record, event log and checkpoints, on local disks or HDFS."""
