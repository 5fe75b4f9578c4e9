"""Sources that require sessions: several session links under one route."""
