#!/bin/bash
exec python3 launch_experiment.py
