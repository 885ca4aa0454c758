#!/bin/bash
set -eu
exec env PROFILE="$1" bash inner.sh
