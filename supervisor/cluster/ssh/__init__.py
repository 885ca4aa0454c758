"""Hosts reached over ssh, for use without a scheduler: host names, connections, and requests to stoker on the hosts."""
