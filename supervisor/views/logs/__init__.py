"""The log engine: one way to read the logs of a run, for the dashboard's pane and for the log screen.

Both views hold a `session.LogSession`, send it `commands`, and draw the `commands.Page` that it returns. They
differ in the attempts that they read (the pane: the newest two as one log, and earlier ones on scrolling
back; the screen: one chosen by a person) and in how they draw rows. Query, order, folding, search and counts
are the same.

From the bytes up; a module imports only those above it:

- `sources`: which logs a run has, which rank wrote a line, how severe a line looks - `query`: the one query
language: parser, and matcher of lines and of whole chunks of a file - `file`: random access to one file of
any size by offset, with a sparse index of running totals; growth and truncation - `stream`: one log thinned
by a query, with its tracebacks and the times of its lines (by the run's arrival index) - `merge`: many logs
as one, by attempt and time, equal lines of ranks folded, from any place in either direction - `commands`:
requests of a view, their answers, positions in the logs - `counter`: counts of lines and matches -
`open_logs`: the files that a view reads, and their changes - `viewport`: the position of a view: its page,
moved by rows, lines, times, steps and matches - `session`: the thread that reads and counts for one view

Lines are not kept in memory: a line is read again from its file when it is shown, so memory does not grow
with the logs.
"""
