"""Defines the job to run as plain data. Pure."""
