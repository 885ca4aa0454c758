"""Hosts reached by ssh, without a scheduler: their names, the connections, and the requests to stoker there."""
