"""The log engine: one way to read the logs of a run, for the dashboard's pane and for the log screen.

Both views hold a `session.LogSession`, send it `commands`, and draw the `commands.Page` that it returns. They differ
in which attempts are read (the pane: the newest two as one log, and those before them as it is scrolled back; the screen: one
that a person chooses) and in how rows are drawn. Query, order, folding, search and counts are the same.

From the bytes up; a module imports only those above it:

- `sources`: which logs a run has, which rank wrote a line, how severe a line looks
- `query`: the one query language: parser, and matcher of lines and of whole chunks of a file
- `file`: random access to one file of any size by offset, with a sparse index of running totals; growth and truncation
- `stream`: one log thinned by a query, with its tracebacks and the times of its lines (by the run's arrival index)
- `merge`: many logs as one, by attempt and time, equal lines of ranks folded, from any place in either direction
- `commands`: what a view asks for, what it gets back, positions in the logs
- `counter`: what is counted of lines and matches
- `open_logs`: which files a view reads, and what became of them
- `viewport`: where a view stands: its page, moved by rows, lines, times, steps and matches
- `session`: the thread that reads and counts for one view

A line is never held: it is read again from its file where it is shown, so memory does not grow with the logs.
"""
