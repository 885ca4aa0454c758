#!/bin/bash
python3 -u train.py
