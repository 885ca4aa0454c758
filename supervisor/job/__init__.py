"""Defines the job to run as data. Pure."""
