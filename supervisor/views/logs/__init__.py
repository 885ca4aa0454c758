"""The log engine, which reads a run's logs for the dashboard.

The log pane sends its `session.LogSession` requests for the `viewport` and draws the `reading.Page` it gets back.
Lines are not kept but read again whenever they are shown, so memory use does not grow with the logs.

From the bytes up, each module imports only from those before it: `sources` (a run's logs, which rank wrote a line,
how severe it looks), `query` (the query language, also used by the run list), `file` (random access to a file of
any size), `stream` (one log filtered by a query, with line times from the run's arrival index), `merge` (many logs
as one, with identical lines from several ranks folded), `reading` (log positions, and what a view shows),
`open_logs` (the files a view reads, their changes and counts), `viewport` (a view's position, moved by rows,
lines, times, steps and matches), and `session` (the thread that reads and counts for a view).
"""
