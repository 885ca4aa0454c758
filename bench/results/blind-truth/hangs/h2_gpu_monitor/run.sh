#!/bin/bash
# GPU use goes into the same log, as we always do
python3 monitor.py &
MON=$!
python3 train.py
rc=$?
kill $MON
exit $rc
