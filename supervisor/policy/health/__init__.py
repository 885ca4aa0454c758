"""Health: how fast a run usually moves, when its silence is a stall, who is slow, what may go wrong soon.

Pure: numbers in, findings out. A second axis beside the run's states: nothing here ends anything; the keeper asks
`ending` whether to.
"""
