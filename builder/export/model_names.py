"""Names of the three models of a repository."""

from __future__ import annotations

ENSEMBLE = "hplm"
LOWER = "hplm_lower"
UPPER = "hplm_upper"
