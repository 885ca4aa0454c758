"""A keeper without a child: it watches a job that somebody else started."""
