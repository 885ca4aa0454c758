#!/bin/bash
exec python3 train.py
