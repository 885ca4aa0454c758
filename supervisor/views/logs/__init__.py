"""The log engine: how the dashboard reads the logs of a run.

The log pane holds a `session.LogSession`, sends it requests to the `viewport`, and draws the `reading.Page` that it returns.

From the bytes up, each module imports only earlier ones: `sources`: which logs a run has, which rank wrote a line, how severe a
line looks · `query`: the query language, of the list of runs, too · `file`: random access to one file of any size · `stream`: one
log thinned by a query, with the times of its lines (by the run's arrival index) · `merge`: many logs as one, equal lines of ranks
folded · `reading`: places in the logs, and what a view shows · `open_logs`: the files that a view reads, their changes and
counts · `viewport`: the position of a view, moved by rows, lines, times, steps and matches · `session`: the thread that reads and
counts for one view.

Lines are not kept in memory. A line is read again from its file when it is shown, so memory does not grow with the logs.
"""
