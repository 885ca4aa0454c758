#!/bin/bash
ulimit -c 0
make -i all
