"""Messages that were set aside or diverted: shown, and sent on to the targets of their routes."""
