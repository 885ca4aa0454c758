"""Hosts reached by ssh, without a scheduler: host names, connections, and requests to stoker on the hosts."""
