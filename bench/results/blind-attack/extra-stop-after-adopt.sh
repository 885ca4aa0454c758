# After attack 29: the same without anything forged. `S=…/stoker sh extra-stop-after-adopt.sh` in an empty folder; prints FAIL where the stop hangs.
set -u
export HOME="$PWD" XDG_STATE_HOME="$PWD/state" STOKER_RUNS_DIR="$PWD/runs"
"$S" run --detach --no-check --name p -- sh -c 'echo step 1 loss 2; sleep 1
  kill -9 $(sed "s/.*\"pid\": *\([0-9]*\).*/\1/" $STOKER_RUN_DIR/nodes/0/keeper.lock | head -1)
  (setsid sleep 3091 &); exit 0'
sleep 4
"$S" attach --adopt p
"$S" stop --now --timeout 15 p && echo "PASS the stop was answered" || echo "FAIL the stop was not answered in 15 s"
ls runs/2*/control
kill -9 $(sed 's/.*"pid": *\([0-9]*\).*/\1/' runs/2*/nodes/0/keeper.lock | head -1) $(pgrep -f '^sleep 3091') 2>/dev/null
