"""Sources that require sessions: several session links of one route."""
