"""Hosts reached by ssh, without a scheduler: who they are, the way to them, and what is asked of stoker there."""
