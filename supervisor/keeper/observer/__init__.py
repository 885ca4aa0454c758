"""A keeper without a child: it watches what somebody else started."""
