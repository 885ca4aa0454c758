"""Hosts reached over ssh when there is no scheduler: host names, connections, and requests to stoker on the hosts."""
