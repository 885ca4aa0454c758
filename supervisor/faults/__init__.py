"""What `stoker rehearse` runs inside one rank of a rehearsal: one failure, caused on request, below its scratch folder alone.

`on_path/` is put on PYTHONPATH by `stoker rehearse` and by nothing else. Standard library only, Python 3.8 syntax.
"""
