"""A keeper without a child: it watches a job that another process started."""
