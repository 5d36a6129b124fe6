"""From distances to decisions: rankings, sample values, selection, checks, and a fast tier for screening."""
