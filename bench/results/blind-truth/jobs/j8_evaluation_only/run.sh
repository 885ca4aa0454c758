#!/bin/bash
python3 evaluate.py
